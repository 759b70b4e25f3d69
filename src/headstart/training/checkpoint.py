"""Checkpoints that are verified: weights and optimizer state by parameter name, progress as JSON, no pickle.

Tensors are stored by torch's distributed checkpoint (DCP) in safetensors files, so that any number of processes can
write and read the same checkpoint, whole or sharded.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.core.file_hashes import FileFacts, describe
from headstart.training import state
from headstart.training.loss_scale import FIRST
from headstart.training.world import World

_NAME = re.compile(r"^step-(\d{9})$")
_LEFTOVER = re.compile(r"^\.(step-\d{9})\.(staging|outgoing|removed)$")


@dataclass
class Progress:
    """The counters of a run: everything that its schedule and its data order depend on."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bad_steps: int = 0
    """Consecutive steps with a NaN or Inf loss or gradient."""
    best_score: float | None = None
    best_step: int = 0
    unimproved: int = 0
    """Evaluations since the best one."""
    plateaus: int = 0
    """All evaluations that did not improve on the best one, for unfreezing."""
    recent: list[float] = field(default_factory=list)
    """Losses of the steps since the last log entry."""
    phases: list[int] = field(default_factory=lambda: [0])
    """The step at which each phase so far began."""
    window: list[tuple[float, float]] = field(default_factory=list)
    """Loss and gradient norm of the last good steps, for spike detection."""
    last_spike: int = 0
    loss_scale: float = FIRST
    """The scale of the loss in fp16."""
    loss_scale_steps: int = 0
    """Steps since the scale changed."""
    skipped_steps: int = 0
    """All steps that changed no weights because gradients in fp16 overflowed."""


@dataclass(frozen=True)
class TrainState:
    """Everything that a checkpoint holds."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    progress: Progress
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    """The best weights so far, of a run that keeps them."""


@dataclass(frozen=True)
class Snapshot:
    """What one process writes of the state at one step; no tensors in a process that writes none."""

    progress: Progress
    tensors: dict[str, torch.Tensor]
    sharded: bool


@dataclass(frozen=True)
class Restored:
    """What `CheckpointStore.restore` read besides the weights and the optimizer state."""

    progress: Progress
    best: dict[str, torch.Tensor]
    skipped: list[str]
    """One message for each newer checkpoint that does not verify."""


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run: folders `step-N`, of which the newest `keep` are kept, and those of `keep_steps`."""

    folder: Path
    fingerprint: str
    """Ties the checkpoints to a recipe and its inputs."""
    keep: int = 2
    keep_steps: int | None = None
    """Checkpoints at multiples of this number of steps are never removed."""
    world: World = World()  # noqa: RUF009  # frozen

    def save(self, train_state: TrainState, sharded: bool = False) -> Path:
        """Write the current state, and return the path of the checkpoint."""
        return self.write(self.snapshot(train_state, sharded))

    def snapshot(self, train_state: TrainState, sharded: bool = False) -> Snapshot:
        """Return what this process has to write of the current state; its tensors change with the next step."""
        tensors: dict[str, torch.Tensor] = {}
        if self.world.is_main or sharded:
            tensors = state.collect(train_state.module, train_state.optimizer, train_state.best)
        return Snapshot(copy.deepcopy(train_state.progress), tensors, sharded)

    def write(self, snapshot: Snapshot) -> Path:
        """Write `folder/step-N`, completely or not at all, verify it, and remove the oldest beyond `keep`.

        All processes call this. If all hold the same tensors, rank 0 writes them. If they are sharded, each process
        writes, reads back and hashes its own part, so that none waits for another to read what all have written.
        """
        target = self.path_of(snapshot.progress)
        if self.world.is_main:
            _clean_up(self.folder)
            self._write(target, snapshot)
            self._remove_old(target)
        elif snapshot.sharded:
            _write_part(snapshot.tensors, self.world, None)
        self.world.barrier()
        return target

    def restore(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Restored | None:
        """Load the newest checkpoint that verifies into module and optimizer; None if there is no checkpoint.

        Damaged checkpoints are skipped and reported. Rank 0 selects the checkpoint for all processes.
        """
        name, skipped = self.world.broadcast(self._select() if self.world.is_main else ("", []))
        if not name:
            return None
        path = self.folder / name
        progress = Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))
        progress.window = [(loss, norm) for loss, norm in progress.window]
        reader = HuggingFaceStorageReader(str(path))
        stored = reader.read_metadata().state_dict_metadata
        shapes = {n: (m.size, m.properties.dtype) for n, m in stored.items() if isinstance(m, TensorStorageMetadata)}
        tensors = state.empty_like(module, optimizer, shapes, str(path))
        with _quiet():
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        return Restored(progress, state.assign(module, optimizer, tensors), skipped)

    def path_of(self, progress: Progress) -> Path:
        """Return the path of the checkpoint of a run's current step."""
        return self.folder / f"step-{progress.step:09d}"

    def _write(self, target: Path, snapshot: Snapshot) -> None:
        tensors = snapshot.tensors
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        with artifact.staged(target, "checkpoint", size_hint=size, run=self.fingerprint) as staging:
            if snapshot.sharded:
                staging.hashed |= _write_part(tensors, self.world, staging.path)
            else:
                _write_tensors(tensors, staging.path, None)
            (staging / "progress.json").write_text(
                json.dumps(asdict(snapshot.progress), indent=2) + "\n", encoding="utf-8"
            )
        artifact.verify(target, "checkpoint", trusted=staging.hashed)

    def _select(self) -> tuple[str, list[str]]:
        """Return the name of the newest checkpoint that verifies, empty if there is none, and the skipped ones."""
        _clean_up(self.folder)
        skipped: list[str] = []
        for path in self._existing():
            try:
                manifest = artifact.verify(path, "checkpoint")
            except ArtifactError as error:
                skipped.append(str(error))
                continue
            if manifest.get("run") != self.fingerprint:
                raise ArtifactError(
                    f"{path} belongs to another recipe or to other data",
                    do="Choose another output, or delete that folder",
                )
            return path.name, skipped
        if skipped:
            raise ArtifactError(
                f"none of the checkpoints in {self.folder} verifies: {'; '.join(skipped)}",
                do="Delete that folder to start again, or restore it from a backup",
            )
        return "", []

    def _remove_old(self, target: Path) -> None:
        """Remove all but the newest `keep` checkpoints and those of `keep_steps`.

        Steps after `target` are damaged and removed too. A folder is renamed before it is emptied, so that no process
        sees a partial one.
        """
        paths = self._existing()
        newer = sum(path.name > target.name for path in paths)
        older = [path for path in paths[newer + self.keep :] if not is_kept(path.name, self.keep_steps)]
        for path in [*paths[:newer], *older]:
            removed = path.with_name(f".{path.name}.removed")
            os.rename(path, removed)
            shutil.rmtree(removed)

    def _existing(self) -> list[Path]:
        """Return the checkpoint folders, newest first."""
        paths = self.folder.glob("step-*") if self.folder.is_dir() else []
        return sorted((path for path in paths if _NAME.match(path.name)), reverse=True)


def is_kept(name: str, keep_steps: int | None) -> bool:
    """Return True if the checkpoint of this name is never removed."""
    return keep_steps is not None and int(name.removeprefix("step-")) % keep_steps == 0


def _write_part(tensors: dict[str, torch.Tensor], world: World, staging: Path | None) -> dict[str, FileFacts]:
    """Write this process's part into the staging folder of rank 0; return the hashes of all processes' files."""
    folder = Path(world.broadcast(str(staging)))
    _write_tensors(tensors, folder, world)
    # DCP names the files of a rank this way.
    own = folder.glob(f"shard-{world.rank + 1:05d}-*")
    parts = world.all_gather({path.name: describe(path) for path in own})
    return {name: facts for part in parts for name, facts in part.items()}


def _write_tensors(tensors: dict[str, torch.Tensor], folder: Path, world: World | None) -> None:
    """Write tensors into the folder: together with the other processes of a world, or alone."""
    group = None if world is None else world.group
    with _quiet():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        try:
            dcp.save(tensors, storage_writer=writer, process_group=group, no_dist=world is None)
        except CheckpointException as error:
            # It is not an Exception, and it wraps the cause (a full disk, for example) by rank.
            raise next(iter(error.failures.values()))[0] from error


def _clean_up(folder: Path) -> None:
    """Remove what a killed process left partly written or partly removed, and restore what it was about to replace."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _LEFTOVER.match(path.name)
        if match and match[2] == "outgoing" and not (folder / match[1]).exists():
            os.rename(path, folder / match[1])
        elif match:
            shutil.rmtree(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence DCP's warning that one process saves alone, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield
