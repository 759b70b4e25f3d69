"""The machines that a run was trained on, and what `auto` became there; a resumed run compares them."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import psutil
import torch
from transformers import PreTrainedModel

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.core.log import logger
from headstart.core.processes import cores
from headstart.stages.runs.manifest import MACHINES, Machine, read_machines
from headstart.training import precision
from headstart.training.settings import TrainingSettings

_WORK = ("checkpoints", "cells", "work")
"""Folders whose content depends on the number format."""


def this_machine(settings: TrainingSettings) -> Machine:
    """Return the machine that this process runs on, with the number format in which it trains."""
    device = precision.default_device(settings.device)
    return Machine(
        cpu=_cpu_model(),
        cores=cores(),
        threads=torch.get_num_threads(),
        memory_gb=round(psutil.virtual_memory().total / 1e9, 1),
        device=precision.device_name(device),
        precision=precision.resolve(settings.precision, device),
    )


def attention_of(model: torch.nn.Module) -> str:
    """Return the attention implementation of a model of transformers; empty if it has none."""
    config = model.config if isinstance(model, PreTrainedModel) else getattr(model, "config", None)
    return str(getattr(config, "_attn_implementation", None) or "")


def record_machine(folder: Path, settings: TrainingSettings) -> list[Machine]:
    """Add this machine to those on which the work in a folder was done, and return them all in order.

    Raises:
        ArtifactError: `precision: auto` means another number format here than where the run began.
    """
    now, before = this_machine(settings), read_machines(folder)
    if before and not any((folder / name).is_dir() for name in _WORK):
        before = []  # nothing was computed there
    if before and before[-1].precision != now.precision:
        raise ArtifactError(
            f"{folder} was trained in {before[-1].precision}, which `training.precision: auto` became on "
            f"{before[-1].cpu or 'the machine where it began'} ({before[-1].device}), but auto is {now.precision} on "
            f"this machine ({now.cpu}, {now.device})",
            allowed="A run uses one number format from start to end",
            do=f"Set training.precision to {before[-1].precision} to resume it here, or resume it on such a machine",
        )
    if before and before[-1].device != now.device:
        logger.warning(
            "%s was trained on %s and is resumed on %s: the results will differ in the last digits",
            folder, before[-1].device, now.device,
        )  # fmt: skip
    machines = [*before, now] if not before or before[-1] != now else before
    artifact.write_whole(folder / MACHINES, json.dumps([machine.model_dump() for machine in machines], indent=2) + "\n")
    return machines


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
