"""Checkpoints that verify: weights and optimiser state by parameter name, progress as JSON, no pickle.

Tensors go through torch's distributed checkpoint (DCP) in its safetensors storage and are keyed by
parameter name, never by position, so the same files can be written and read by any number of ranks.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from headstart.core import artifact
from headstart.core.errors import ArtifactError

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
_NAME = re.compile(r"^step-(\d{9})$")


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
    recent: list[float] = field(default_factory=list)
    """Losses of the steps since the last line of the log."""
    phases: list[int] = field(default_factory=lambda: [0])
    """The step at which each phase so far began."""


def save(
    folder: Path,
    module: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    best: dict[str, torch.Tensor] | None,
    fingerprint: str,
    keep: int,
) -> Path:
    """Write `folder/step-N`, whole or not at all, then remove the oldest beyond `keep`."""
    tensors = _tensors(module, optimiser) | {f"best.{name}": value for name, value in (best or {}).items()}
    target = folder_of(folder, progress)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    with artifact.staged(target, "checkpoint", size_hint=size, run=fingerprint) as staging:
        with _quiet():
            writer = HuggingFaceStorageWriter(str(staging), save_distributed=True)
            dcp.save(tensors, storage_writer=writer, no_dist=True)
        (staging / "progress.json").write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
    found = _existing(folder)
    # Newer ones are torn: a run goes on from the newest that verifies.
    newer = sum(path.name > target.name for path in found)
    for path in [*found[:newer], *found[newer + keep :]]:
        shutil.rmtree(path)
    return target


def restore(
    folder: Path, module: torch.nn.Module, optimiser: torch.optim.Optimizer, fingerprint: str
) -> tuple[Progress, dict[str, torch.Tensor], list[str]] | None:
    """Load the newest checkpoint that verifies; returns progress, the best weights so far, and what was passed over.

    None if there is no checkpoint at all. A torn or altered one is named and passed over.
    """
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
        progress = Progress(**json.loads((candidate / "progress.json").read_text(encoding="utf-8")))
        best = _load(candidate, module, optimiser)
        return progress, best, passed_over
    if passed_over:
        raise ArtifactError(
            f"none of the checkpoints in {folder} verifies: {'; '.join(passed_over)}",
            do="Delete that folder to start anew, or restore it from a backup",
        )
    return None


def folder_of(folder: Path, progress: Progress) -> Path:
    """Return where the checkpoint of a run's present step lies."""
    return folder / f"step-{progress.step:09d}"


def _tensors(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return everything to be saved by name; of tied weights, which are one tensor, the first name alone."""
    weights: dict[str, Any] = get_model_state_dict(module)
    # Asked before the first update, torch would count a step that was none.
    state: dict[str, Any] = get_optimizer_state_dict(module, optimiser, options=_FLAT) if optimiser.state else {}
    named = {f"model.{name}": weights[name] for name, first in _first_names(weights).items() if name == first}
    return named | {f"optimiser.{k}": v for k, v in state.items() if isinstance(v, torch.Tensor)}


def _first_names(weights: Mapping[str, Any]) -> dict[str, str]:
    """Map each name to the first one that shares its tensor."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    return {
        name: first.setdefault((value.data_ptr() or id(value), tuple(value.shape)), name)
        for name, value in weights.items()
    }


def _load(folder: Path, module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    names = _first_names(get_model_state_dict(module))
    state: dict[str, Any] = get_optimizer_state_dict(module, optimiser, options=_FLAT)
    tensors = {name: torch.empty_like(value) for name, value in _tensors(module, optimiser).items()}
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    # A parameter that no update has reached yet has no state.
    unmoved = {name for name in tensors if name.startswith("optimiser.") and name not in stored}
    tensors = {name: value for name, value in tensors.items() if name not in unmoved}
    missing = sorted(set(tensors) - set(stored))
    if missing:
        raise ArtifactError(
            f"{folder} lacks {missing[0]} and {len(missing) - 1} more tensors", do="Delete it to start anew"
        )
    for name, described in stored.items():
        if name.startswith("best.") and isinstance(described, TensorStorageMetadata):
            tensors[name] = torch.empty(described.size, dtype=described.properties.dtype)
    with _quiet():
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    weights: dict[str, Any] = {name: tensors[f"model.{first}"] for name, first in names.items()}
    set_model_state_dict(module, weights)
    state |= {k.removeprefix("optimiser."): v for k, v in tensors.items() if k.startswith("optimiser.")}
    set_optimizer_state_dict(module, optimiser, state, options=_FLAT)
    for name, parameter in module.named_parameters():
        if any(f"optimiser.state.{name}.{key}" in unmoved for key in ("step", "momentum_buffer")):
            optimiser.state.pop(parameter, None)
    return {k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")}


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
