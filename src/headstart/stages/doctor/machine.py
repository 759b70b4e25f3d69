"""What this machine can do, and the settings that follow."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

import psutil
import torch

from headstart.core import artifact
from headstart.core.processes import cores
from headstart.stages.runs import environment
from headstart.training import precision

_EXTRAS = {
    "corpus": ("daft",),
    "search": ("sentence_transformers", "usearch"),
    "study": ("ray", "submitit"),
    "quant": ("bitsandbytes",),
}


def run() -> dict[str, Any]:
    """Look at processor, memory, disk, packages and compiler."""
    device = precision.default_device()
    return {
        "versions": artifact.versions(),
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(0),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().available / 1e9, 1),
        "allocator": environment.allocator(),
        "disk_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "instructions": sorted(precision.cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}),
        "precision": precision.resolve("auto", device),
        "compiler": next((name for name in ("g++", "clang++", "cl") if shutil.which(name)), None),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "extras": {name: all(importlib.util.find_spec(p) for p in packages) for name, packages in _EXTRAS.items()},
    }


def render(found: dict[str, Any]) -> str:
    """Say it in lines, each with what follows from it."""
    lines = [
        "versions    " + ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
        f"device      {found['device']}, {found['cores']} cores, {found['threads']} threads",
        f"memory      {found['memory_gb']} GB free; disk {found['disk_gb']} GB free here",
        f"allocator   {found['allocator']}",
        f"precision   {found['precision']} by `training.precision: auto` ({', '.join(found['instructions'])})",
        f"compiler    {found['compiler'] or 'none: `training.torch_compile` cannot be used'}",
    ]
    if found["compiler"]:
        lines[-1] += "; `training.torch_compile: true` pays in runs of more than about five minutes"
    if found["load"] is not None and found["load"] > 0.5 * (found["cores"] or 1):
        lines.append(f"load        {found['load']}: something else is running; measured speeds will be low")
    for name, there in found["extras"].items():
        lines.append(
            f"extra       {name}: " + ("installed" if there else f"missing; pip install 'headstart[{name}]' brings it")
        )
    return "\n".join(lines)
