"""Checkpoints in an object store, from which a run resumes on a machine that has none of its files.

recipe.yaml, inputs.json           of the run, written when it starts
step-000000120/run/…               recipe, inputs, cost and logs at that step
step-000000120/*.safetensors, …    the checkpoint
step-000000120/headstart.json      its manifest, uploaded last: without it, the checkpoint counts as absent
snapshots/step-000000100/…         the networks along the run, if it keeps them
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError
from headstart.core.log import logger
from headstart.corpus.read.store_folder import StoreFolder, download
from headstart.corpus.read.stores import StoredObject
from headstart.stages.runs.folder import COST, INPUTS, RECIPE, OtherRun, seconds_spent
from headstart.training.callbacks import Callback
from headstart.training.checkpoint import is_kept
from headstart.training.loop import Loop

SNAPSHOTS = "snapshots"
"""The folder of a run with its networks along the way."""
_STEP = re.compile(r"(step-[0-9]{9})/(.+)")
_RUN = "run"
_RESTORING = ".restoring"


class ArtifactStore:
    """Artifacts in a folder of a store: their manifests are uploaded last and removed first."""

    def __init__(self, folder: StoreFolder) -> None:
        """Take the folder of the store; nothing is requested yet."""
        self.folder = folder

    def upload(self, path: Path, name: str) -> None:
        """Upload a folder that was verified."""
        for file in artifact.read_manifest(path)["files"]:
            self.folder.upload(path / file, f"{name}/{file}")
        self.folder.upload(path / artifact.MANIFEST, f"{name}/{artifact.MANIFEST}")

    def copy(
        self, name: str, target: Path, kind: str, files: Mapping[str, StoredObject], fingerprint: str | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> bool:  # fmt: skip
        """Copy an artifact to a local folder and verify it; False, with a warning, if it is damaged.

        An artifact with another `fingerprint` than the given one belongs to another run, which is an error. `before` is
        called when the copy was verified and has not yet appeared in the local folder.
        """
        staging = target.with_name(f".{target.name}.staging")
        shutil.rmtree(staging, ignore_errors=True)
        try:
            download(files[f"{name}/{artifact.MANIFEST}"], staging / artifact.MANIFEST)
            manifest = artifact.read_manifest(staging)
            if fingerprint is not None and manifest.get("run") != fingerprint:
                raise other_run(self.folder.shown)
            for file in manifest["files"]:
                if f"{name}/{file}" not in files:
                    raise ArtifactError(f"{self.folder.shown}/{name} lacks {file}")
                download(files[f"{name}/{file}"], staging / file)
            artifact.verify(staging, kind)
            before()
            # What is there does not verify.
            shutil.rmtree(target, ignore_errors=True)
            os.rename(staging, target)
        except ArtifactError as error:
            logger.warning("skipped a damaged %s of %s: %s", kind, self.folder.shown, error)
            return False
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def remove(self, name: str, files: Mapping[str, StoredObject]) -> None:
        """Remove an artifact, its manifest first, so that no part of one is taken for an artifact."""
        names = [file for file in files if file.startswith(f"{name}/")]
        for file in sorted(names, key=lambda file: file != f"{name}/{artifact.MANIFEST}"):
            self.folder.remove(file)


class RemoteCheckpoints(ArtifactStore):
    """The checkpoints of one training in a folder of a store."""

    def __init__(self, folder: StoreFolder, output: Path) -> None:
        """Take the folder of the store and the local folder with `checkpoints` and `logs`."""
        super().__init__(folder)
        self.output = output

    def upload_run(self) -> None:
        """Write the recipe and the inputs of the run to the store."""
        for name in (RECIPE, INPUTS):
            self.folder.upload(self.output / name, name)

    def restore(self, fingerprint: str) -> None:
        """Copy the newest checkpoint from the store, unless the local folder has a later one; and snapshots before it.

        Logs and cost of the run come with it: another machine has continued the run. A local folder without files gets
        them even if all checkpoints are damaged.
        """
        files = self.folder.files()
        steps, newest = _steps(files), self._newest_local()
        if steps and not _has_files(self.output):
            restore_files(_run_files_of(steps[0], files), self.output)
        for name in steps:
            if name <= newest:
                break
            # Before the checkpoint, so that a run that is killed in between restores both again.
            continue_run = partial(self._continue_run, steps[0], files)
            if self.copy(name, self.output / "checkpoints" / name, "checkpoint", files, fingerprint, continue_run):
                newest = name
                break
        for name in _snapshots(files):
            target = self.output / SNAPSHOTS / name
            if name <= newest and not artifact.is_complete(target):
                self.copy(f"{SNAPSHOTS}/{name}", target, "snapshot of pretrain", files)

    def upload_checkpoint(self, checkpoint: Path, keep: int, keep_steps: int | None = None) -> None:
        """Upload a checkpoint that was verified, with the files of the run, and remove the oldest beyond `keep`.

        Those at multiples of `keep_steps` steps stay.
        """
        files, name = self.folder.files(), checkpoint.name
        if f"{name}/{artifact.MANIFEST}" in files:
            self.folder.remove(f"{name}/{artifact.MANIFEST}")
        with tempfile.TemporaryDirectory(dir=self.output, prefix=".upload-") as copies:
            for number, path in enumerate(self._run_files()):
                # A copy: training may append to the logs meanwhile.
                copied = shutil.copyfile(path, Path(copies) / str(number))
                self.folder.upload(copied, f"{name}/{_RUN}/{path.relative_to(self.output).as_posix()}")
        for path in sorted((self.output / SNAPSHOTS).glob("step-*")):
            if artifact.is_complete(path) and path.name not in _snapshots(files):
                self.upload(path, f"{SNAPSHOTS}/{path.name}")
        self.upload(checkpoint, name)
        started = sorted({match[1] for file in files if (match := _STEP.fullmatch(file))} - {name}, reverse=True)
        older = [step for step in started if step < name][keep - 1 :]
        # A later step is one that this run, which resumed before it, did not accept.
        for step in [*(s for s in started if s > name), *(s for s in older if not is_kept(s, keep_steps))]:
            self.remove(step, files)

    def _continue_run(self, step: str, files: Mapping[str, StoredObject]) -> None:
        """Copy the logs and the cost at a step over those of an earlier one; the recipe is that of this run already."""
        found = _run_files_of(step, files)
        restore_files({name: stored for name, stored in found.items() if name not in (RECIPE, INPUTS)}, self.output)

    def _newest_local(self) -> str:
        """Return the name of the newest checkpoint in the output that verifies; empty if there is none."""
        for path in sorted((self.output / "checkpoints").glob("step-*"), reverse=True):
            with suppress(ArtifactError):
                artifact.verify(path, "checkpoint")
                return path.name
        return ""

    def _run_files(self) -> list[Path]:
        """Return the files of the run that a resumed run continues: recipe, inputs, cost and logs."""
        paths = [*self.output.glob("*"), *(self.output / "logs").rglob("*")]
        return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


class UploadCallback(Callback):
    """Uploads each checkpoint after it was written and verified."""

    def __init__(self, checkpoints: RemoteCheckpoints, keep: int, keep_steps: int | None = None) -> None:
        """Take the checkpoints in the store, and which of them to keep, as `CheckpointStore` does."""
        self.checkpoints, self.keep, self.keep_steps = checkpoints, keep, keep_steps

    def on_save(self, loop: Loop, path: Path) -> None:
        """Upload; if the store fails for good, training continues, and the next checkpoint is tried."""
        if not loop.world.is_main:
            return
        try:
            self.checkpoints.upload_checkpoint(path, self.keep, self.keep_steps)
        except DataError as error:
            logger.warning("%s was not uploaded: %s", path.name, error)


@contextmanager
def restored_run(folder: StoreFolder, output: Path) -> Iterator[None]:
    """Write the recipe, inputs and logs of the run in the store to an output that is empty.

    The block compares them with the recipe of the user. If they are of another run, they are removed again.
    """
    is_restored = not _has_files(output) and restore_files(_files_of_run(folder.files()), output)
    try:
        yield
    except OtherRun as error:
        if not is_restored:
            raise
        shutil.rmtree(output)
        raise other_run(folder.shown) from error


def restore_files(files: Mapping[str, StoredObject], output: Path) -> bool:
    """Copy files to a local folder, named by their paths in it; False if there are none.

    All are copied before the first one appears, so that a run that was killed meanwhile copies them again. A local
    record of the cost stays if it counts more seconds: they were paid for.
    """
    staging = output / _RESTORING
    shutil.rmtree(staging, ignore_errors=True)
    for name, stored in files.items():
        download(stored, staging / name)
    # The recipe first: a folder with other files and no recipe is refused.
    for name in sorted(files, key=lambda name: name != RECIPE):
        if name == COST and (seconds_spent(output) or 0) > (seconds_spent(staging) or 0):
            continue
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / name, output / name)
    shutil.rmtree(staging, ignore_errors=True)
    return bool(files)


def other_run(shown: str) -> DataError:
    """Return the error for a store that belongs to another run."""
    return DataError(
        f"{shown} has checkpoints of another recipe or of other data",
        allowed="A checkpoint store belongs to one run",
        do="Choose another training.checkpoint_store, or delete that folder",
    )


def _files_of_run(files: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
    """Return the files of the run at its newest checkpoint; without one, those with which it started."""
    steps = _steps(files)
    return _run_files_of(steps[0], files) if steps else {n: files[n] for n in (RECIPE, INPUTS) if n in files}


def _run_files_of(step: str, files: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
    prefix = f"{step}/{_RUN}/"
    return {name.removeprefix(prefix): stored for name, stored in files.items() if name.startswith(prefix)}


def _steps(files: Mapping[str, StoredObject]) -> list[str]:
    """Return the complete checkpoints, newest first."""
    found = [match[1] for name in files if (match := _STEP.fullmatch(name)) and match[2] == artifact.MANIFEST]
    return sorted(found, reverse=True)


def _snapshots(files: Mapping[str, StoredObject]) -> list[str]:
    """Return the complete snapshots."""
    names = [name.split("/") for name in files]
    return sorted(parts[1] for parts in names if parts[0] == SNAPSHOTS and parts[2:] == [artifact.MANIFEST])


def _has_files(folder: Path) -> bool:
    return folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir())
