"""Checkpoints that verify: weights and optimizer state by parameter name, progress as JSON, no pickle.

Tensors go through torch's distributed checkpoint (DCP) in its safetensors storage, so that the same files are
written and read by any number of processes, whole or sharded.
"""

from __future__ import annotations

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
from headstart.training import state
from headstart.training.world import World

_NAME = re.compile(r"^step-(\d{9})$")
_LEFT_BEHIND = re.compile(r"^\.(step-\d{9})\.(staging|outgoing|removed)$")


@dataclass
class Progress:
    """Where a run stands; all that its schedule and its data order depend on."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bad_steps: int = 0
    best_score: float | None = None
    best_step: int = 0
    unimproved: int = 0
    """Measurements since the best one."""
    recent: list[float] = field(default_factory=list)
    """Losses of the steps since the last line of the log."""
    phases: list[int] = field(default_factory=lambda: [0])
    """The step at which each phase so far began."""
    window: list[tuple[float, float]] = field(default_factory=list)
    """Loss and gradient norm of the last good steps, by which a spike is told."""
    last_spike: int = 0


def save(
    folder: Path,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    best: dict[str, torch.Tensor],
    fingerprint: str,
    keep: int,
    world: World | None = None,
    sharded: bool = False,
) -> Path:
    """Write `folder/step-N`, whole or not at all, then remove the oldest beyond `keep`.

    All processes of a world call this. The leader writes alone what all of them hold; what is sharded each writes in
    its part, and reads back and hashes that, so that no process waits for another to read what many have written. The
    new checkpoint is verified before an older one goes.
    """
    world, target = world or World(), folder_of(folder, progress)
    if world.leads:
        _tidy(folder)
        tensors, parts = state.collect(module, optimizer, best), dict[str, artifact.FileFacts]()
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        with artifact.staged(target, "checkpoint", size_hint=size, known=parts, run=fingerprint) as staging:
            if sharded:
                parts |= _write_part(tensors, world, staging)
            else:
                _write(tensors, staging, alone=True)
            (staging / "progress.json").write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
        artifact.verify(target, "checkpoint", trusted=parts)
        _retain(folder, target, keep)
    elif sharded:
        _write_part(state.collect(module, optimizer, best), world, None)
    world.wait()
    return target


def restore(
    folder: Path,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: str,
    world: World | None = None,
) -> tuple[Progress, dict[str, torch.Tensor], list[str]] | None:
    """Load the newest checkpoint that verifies; returns progress, the best weights so far, and what was passed over.

    None if there is no checkpoint at all. A torn or altered one is named and passed over. The leader chooses.
    """
    world = world or World()
    chosen, passed_over = world.told(_choose(folder, fingerprint) if world.leads else ("", []))
    if not chosen:
        return None
    candidate = folder / chosen
    progress = Progress(**json.loads((candidate / "progress.json").read_text(encoding="utf-8")))
    progress.window = [(loss, norm) for loss, norm in progress.window]
    reader = HuggingFaceStorageReader(str(candidate))
    stored = reader.read_metadata().state_dict_metadata
    shapes = {n: (m.size, m.properties.dtype) for n, m in stored.items() if isinstance(m, TensorStorageMetadata)}
    tensors = state.wanted(module, optimizer, shapes, str(candidate))
    with _quiet():
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return progress, state.put_back(module, optimizer, tensors), passed_over


def folder_of(folder: Path, progress: Progress) -> Path:
    """Return where the checkpoint of a run's present step lies."""
    return folder / f"step-{progress.step:09d}"


def _choose(folder: Path, fingerprint: str) -> tuple[str, list[str]]:
    """Return the name of the newest checkpoint that verifies, empty if there is none, and what was passed over."""
    _tidy(folder)
    passed_over: list[str] = []
    for candidate in _existing(folder):
        try:
            manifest = artifact.verify(candidate, "checkpoint")
        except ArtifactError as error:
            passed_over.append(str(error))
            continue
        if manifest.get("run") != fingerprint:
            raise ArtifactError(
                f"{candidate} belongs to another recipe or other data",
                do="Choose another output, or delete that folder",
            )
        return candidate.name, passed_over
    if passed_over:
        raise ArtifactError(
            f"none of the checkpoints in {folder} verifies: {'; '.join(passed_over)}",
            do="Delete that folder to start anew, or restore it from a backup",
        )
    return "", []


def _write_part(tensors: dict[str, torch.Tensor], world: World, staging: Path | None) -> dict[str, artifact.FileFacts]:
    """Write this process's part into the leader's folder; returns what all of them say of the files they wrote."""
    folder = Path(world.told(str(staging)))
    _write(tensors, folder, alone=False)
    # As DCP names the files of the process of a rank.
    own = folder.glob(f"shard-{world.rank + 1:05d}-*")
    parts = world.gathered({path.name: artifact.describe(path) for path in own})
    return {name: facts for part in parts for name, facts in part.items()}


def _write(tensors: dict[str, torch.Tensor], folder: Path, alone: bool) -> None:
    with _quiet():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        try:
            dcp.save(tensors, storage_writer=writer, no_dist=alone)
        except CheckpointException as error:
            # It is no Exception, and hides what went wrong (a full disk, say) behind the rank where it did.
            raise next(iter(error.failures.values()))[0] from error


def _retain(folder: Path, target: Path, keep: int) -> None:
    """Remove what is older than the newest `keep`, and newer ones, which are torn: a run goes on from the newest good.

    A folder is renamed before it is emptied, so that none is ever seen in part.
    """
    found = _existing(folder)
    newer = sum(path.name > target.name for path in found)
    for path in [*found[:newer], *found[newer + keep :]]:
        gone = path.with_name(f".{path.name}.removed")
        os.rename(path, gone)
        shutil.rmtree(gone)


def _tidy(folder: Path) -> None:
    """Clear away what a killed process left half written or half removed, and put back what it was about to replace."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _LEFT_BEHIND.match(path.name)
        if match and match[2] == "outgoing" and not (folder / match[1]).exists():
            os.rename(path, folder / match[1])
        elif match:
            shutil.rmtree(path)


def _existing(folder: Path) -> list[Path]:
    """List checkpoint folders, newest first."""
    found = [path for path in folder.glob("step-*") if _NAME.match(path.name)] if folder.is_dir() else []
    return sorted(found, reverse=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence DCP's warning that a single process saves alone, which is what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield
