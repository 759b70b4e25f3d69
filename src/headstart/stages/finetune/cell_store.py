"""A fine-tuning run in an object store, from which it resumes on a machine that has none of its files.

recipe.yaml, inputs.json, run.json     of the run, written when it starts
adapt_first/…                          the checkpoint that was chosen; until there is one, the pre-training
work/METHOD-seed-0/…                   the checkpoints of a cell that is being trained (`runs.checkpoint_store`)
models/seed-0/…, logs/METHOD-seed-0/…  the model and the logs of a finished cell
cells/METHOD-seed-0/…                  its scores; its manifest is uploaded last
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headstart.core import artifact, registry
from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.corpus.read.store_folder import StoreFolder, download
from headstart.corpus.read.stores import StoredObject
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.runs.checkpoint_store import ArtifactStore, RemoteCheckpoints, restored_run
from headstart.stages.runs.folder import INPUTS, RECIPE, OtherRun, RunFolder
from headstart.stages.runs.manifest import ADAPTED

CELL = "cell"
ADAPTED_KIND = "adapted checkpoint"
PRETRAINING = "adapt_first/pretraining"
_RUN = "run.json"


class RemoteCells(ArtifactStore):
    """The cells of one run in a folder of a store: finished ones, and the checkpoints of the one in training."""

    def __init__(self, url: str, recipe: FinetuneRecipe) -> None:
        """Take the folder of the store and the recipe of the run; nothing is requested yet."""
        super().__init__(StoreFolder(url))
        self.output = recipe.output
        self._chosen = registry.name_of("adaptations", recipe.adaptation)

    @contextmanager
    def restored_run(self) -> Iterator[None]:
        """Write the recipe and the inputs of the run in the store to an output that is empty, for the block to check.

        If the block refuses them, they are removed again.
        """
        with restored_run(self.folder, self.output):
            yield

    def begin(self, folder: RunFolder) -> None:
        """Write the recipe to the store; raises `OtherRun` if the store belongs to another run."""
        files = self.folder.files()
        run = {"fingerprint": folder.fingerprint}
        if _RUN not in files:
            path = self.output / f".{_RUN}"
            artifact.write_whole(path, json.dumps(run) + "\n")
            self.folder.upload(path, _RUN)
            path.unlink()
        elif self._read_run(files[_RUN]) != run:
            raise OtherRun(f"{self.folder.shown} belongs to a run of another recipe or of other data")
        for name in (RECIPE, INPUTS):
            self.folder.upload(self.output / name, name)

    def synchronize(self) -> None:
        """Copy what is finished in the store, and upload what is finished here."""
        files = self.folder.files()
        if f"{ADAPTED}/{artifact.MANIFEST}" in files and not artifact.is_complete(self.output / ADAPTED):
            self.copy(ADAPTED, self.output / ADAPTED, ADAPTED_KIND, files)
        for name in _cells(files):
            if not artifact.is_complete(self.output / "cells" / name) and not self._copy_cell(name, files):
                # It runs again, and is uploaded again.
                self.remove(f"cells/{name}", files)
        self.upload_finished()

    def checkpoints_of(self, work: Path) -> RemoteCheckpoints:
        """Return the checkpoints of a cell, given its local folder."""
        return RemoteCheckpoints(self.folder.subfolder(f"work/{work.name}"), work)

    def pretraining_url(self) -> str:
        """Return the folder of the store for the pre-training of `adapt_first`."""
        return self.folder.url_of(PRETRAINING)

    def upload_finished(self) -> None:
        """Upload the finished cells that the store lacks, and remove their checkpoints; a failure is a warning."""
        try:
            files = self.folder.files()
            if artifact.is_complete(self.output / ADAPTED):
                if f"{ADAPTED}/{artifact.MANIFEST}" not in files:
                    self.upload(self.output / ADAPTED, ADAPTED)
                self.remove(PRETRAINING, files)
            done = _cells(files)
            for cell in sorted((self.output / "cells").glob("*")):
                if artifact.is_complete(cell) and cell.name not in done:
                    self._upload_cell(cell)
                    done.append(cell.name)
            for name in done:
                self.remove(f"work/{name}", files)
        except DataError as error:
            logger.warning("finished methods were not uploaded: %s", error)

    def _upload_cell(self, cell: Path) -> None:
        for name in self._parts(cell.name):
            if artifact.is_complete(self.output / name):
                self.upload(self.output / name, name)
        logs = self.output / "logs" / cell.name
        for path in sorted(logs.rglob("*")):
            if path.is_file():
                self.folder.upload(path, f"logs/{cell.name}/{path.relative_to(logs).as_posix()}")
        self.upload(cell, f"cells/{cell.name}")

    def _copy_cell(self, cell: str, files: Mapping[str, StoredObject]) -> bool:
        """Copy a finished cell with its model and its logs; False if one of them is damaged."""
        for name in self._parts(cell):
            if not self.copy(name, self.output / name, "model", files):
                return False
        for name, stored in files.items():
            if name.startswith(f"logs/{cell}/"):
                download(stored, self.output / name)
        return self.copy(f"cells/{cell}", self.output / "cells" / cell, CELL, files)

    def _parts(self, cell: str) -> list[str]:
        """Return the artifacts besides the cell itself: the model, if it is one of the recipe's own adaptation."""
        method, _, seed = cell.rpartition("-seed-")
        return [f"models/seed-{seed}"] if method == self._chosen else []

    def _read_run(self, stored: StoredObject) -> object:
        path = self.output / f".{_RUN}"
        download(stored, path)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return None
        finally:
            path.unlink()


def _cells(files: Mapping[str, StoredObject]) -> list[str]:
    """Return the finished cells in a store."""
    names = [name.split("/") for name in files]
    return sorted(parts[1] for parts in names if parts[0] == "cells" and parts[2:] == [artifact.MANIFEST])
