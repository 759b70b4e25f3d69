"""Checkpoints in an object store, from which a run resumes on a machine that has none of its files.

recipe.yaml, inputs.json           of the run, written when it starts
step-000000120/run/…               recipe, inputs, cost and logs at that step
step-000000120/*.safetensors, …    the checkpoint
step-000000120/headstart.json      its manifest, uploaded last: without it, the checkpoint counts as absent
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError
from headstart.core.log import logger
from headstart.corpus.read.store_folder import StoreFolder, download
from headstart.corpus.read.stores import StoredObject
from headstart.stages.runs.folder import INPUTS, RECIPE
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop

_STEP = re.compile(r"(step-[0-9]{9})/(.+)")
_RUN = "run"


class RemoteCheckpoints:
    """The checkpoints of one run in a folder of a store."""

    def __init__(self, url: str, output: Path) -> None:
        """Take the folder of the store and the output folder of the run; nothing is requested yet."""
        self.folder, self.output = StoreFolder(url), output

    @contextmanager
    def restored_run(self) -> Iterator[None]:
        """Write the recipe, inputs and logs of the run in the store to an output that is empty.

        The block compares them with the recipe of the user. If it refuses them, they are removed again.
        """
        is_restored = not _has_files(self.output) and self._restore_run()
        try:
            yield
        except ArtifactError as error:
            if not is_restored:
                raise
            shutil.rmtree(self.output)
            raise _other_run(self.folder.shown) from error

    def _restore_run(self) -> bool:
        """Copy the files of the run to the output; False if the store has none."""
        files = self.folder.files()
        steps = _steps(files)
        prefix = f"{steps[0]}/{_RUN}/" if steps else ""
        names = [name for name in files if name.startswith(prefix)] if steps else [RECIPE, INPUTS]
        present = [name for name in names if name in files]
        # The recipe first: a folder with other files and no recipe is refused.
        for name in sorted(present, key=lambda name: not name.endswith(RECIPE)):
            download(files[name], self.output / name.removeprefix(prefix))
        return bool(present)

    def begin(self, fingerprint: str) -> None:
        """Write the recipe to the store, and copy the newest checkpoint from it unless the output has a later one."""
        files = self.folder.files()
        steps, newest = _steps(files), self._newest_local()
        for name in steps:
            if name <= newest or self._copy(name, files, fingerprint):
                break
        for name in (RECIPE, INPUTS):
            self.folder.upload(self.output / name, name)

    def upload(self, checkpoint: Path, keep: int) -> None:
        """Upload a checkpoint that was verified, its manifest last, and remove the oldest beyond `keep`."""
        files, name = self.folder.files(), checkpoint.name
        if f"{name}/{artifact.MANIFEST}" in files:
            self.folder.remove(f"{name}/{artifact.MANIFEST}")
        for path in self._run_files():
            self.folder.upload(path, f"{name}/{_RUN}/{path.relative_to(self.output).as_posix()}")
        for file in artifact.read_manifest(checkpoint)["files"]:
            self.folder.upload(checkpoint / file, f"{name}/{file}")
        self.folder.upload(checkpoint / artifact.MANIFEST, f"{name}/{artifact.MANIFEST}")
        started = sorted({match[1] for file in files if (match := _STEP.fullmatch(file))} - {name}, reverse=True)
        older = [step for step in started if step < name]
        # A later step is one that this run, which resumed before it, did not accept.
        for step in [*(step for step in started if step > name), *older[keep - 1 :]]:
            self._remove(step, list(files))

    def _newest_local(self) -> str:
        """Return the name of the newest checkpoint in the output that verifies; empty if there is none."""
        for path in sorted((self.output / "checkpoints").glob("step-*"), reverse=True):
            with suppress(ArtifactError):
                artifact.verify(path, "checkpoint")
                return path.name
        return ""

    def _copy(self, name: str, files: dict[str, StoredObject], fingerprint: str) -> bool:
        """Copy a checkpoint to the output; False if it does not verify."""
        target = self.output / "checkpoints" / name
        staging = target.with_name(f".{name}.staging")
        shutil.rmtree(staging, ignore_errors=True)
        try:
            download(files[f"{name}/{artifact.MANIFEST}"], staging / artifact.MANIFEST)
            manifest = artifact.read_manifest(staging)
            if manifest.get("run") != fingerprint:
                raise _other_run(self.folder.shown)
            for file in manifest["files"]:
                if f"{name}/{file}" not in files:
                    raise ArtifactError(f"{self.folder.shown}/{name} lacks {file}")
                download(files[f"{name}/{file}"], staging / file)
            artifact.verify(staging, "checkpoint")
            # What is there does not verify.
            shutil.rmtree(target, ignore_errors=True)
            os.rename(staging, target)
        except ArtifactError as error:
            logger.warning("skipped a damaged checkpoint of %s: %s", self.folder.shown, error)
            return False
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def _remove(self, step: str, names: list[str]) -> None:
        """Remove a checkpoint, its manifest first, so that no part of one is taken for a checkpoint."""
        for name in sorted(names, key=lambda name: not name.endswith(f"/{artifact.MANIFEST}")):
            if name.startswith(f"{step}/"):
                self.folder.remove(name)

    def _run_files(self) -> list[Path]:
        """Return the files of the run that a resumed run continues: recipe, inputs, cost and logs."""
        paths = [*self.output.glob("*"), *(self.output / "logs").rglob("*")]
        return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


class UploadCallback(Callback):
    """Uploads each checkpoint after it was written and verified."""

    def __init__(self, checkpoints: RemoteCheckpoints, keep: int) -> None:
        """Take the checkpoints in the store, and how many of them to keep."""
        self.checkpoints, self.keep = checkpoints, keep

    def on_save(self, loop: Loop, path: Path) -> None:
        """Upload; if the store fails for good, training continues, and the next checkpoint is tried."""
        if not loop.world.is_main:
            return
        try:
            self.checkpoints.upload(path, self.keep)
        except DataError as error:
            logger.warning("%s was not uploaded: %s", path.name, error)


def _steps(files: dict[str, StoredObject]) -> list[str]:
    """Return the complete checkpoints, newest first."""
    found = [match[1] for name in files if (match := _STEP.fullmatch(name)) and match[2] == artifact.MANIFEST]
    return sorted(found, reverse=True)


def _has_files(folder: Path) -> bool:
    return folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir())


def _other_run(shown: str) -> DataError:
    return DataError(
        f"{shown} has checkpoints of another recipe or of other data",
        allowed="A checkpoint store belongs to one run",
        do="Choose another training.checkpoint_store, or delete that folder",
    )
