"""Snapshots: the networks of a pre-training run as they are along the way, each a plain checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from headstart.core import artifact
from headstart.stages.runs.checkpoint_store import SNAPSHOTS
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop, StepResult

FOLDER = SNAPSHOTS
_KIND = "snapshot of pretrain"
_PREFIX = "step-"


class SnapshotCallback(Callback):
    """Saves the networks at equal distances over the budget, except at its end, where the run publishes them."""

    def __init__(self, folder: Path, count: int, save: Callable[[Path], None]) -> None:
        """Take the folder of the run, the number of parts of its budget, and a function that saves the networks."""
        self.folder, self.count, self.save = folder / FOLDER, count, save

    def on_train_begin(self, loop: Loop) -> None:
        """Remove the snapshots of steps that a resumed run repeats."""
        self._done = self._due(loop)
        for step, path in snapshots_of(self.folder.parent).items():
            if step > loop.progress.step:
                shutil.rmtree(path)

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Save the networks if a snapshot is due."""
        due = self._due(loop)
        if due <= self._done or loop.fraction_done() >= 1:
            return
        self._done = due
        progress = {"steps": loop.progress.step, "tokens": loop.progress.tokens}
        with artifact.staged(self.folder / f"{_PREFIX}{loop.progress.step:09d}", _KIND, progress=progress) as staging:
            self.save(staging.path)

    def _due(self, loop: Loop) -> int:
        return int(min(loop.fraction_done(), 1.0) * self.count + 1e-9)


def snapshots_of(folder: Path) -> dict[int, Path]:
    """Return the complete snapshots of a run by step."""
    paths = sorted((folder / FOLDER).glob(f"{_PREFIX}*"))
    return {int(path.name.removeprefix(_PREFIX)): path for path in paths if artifact.is_complete(path)}
