"""`headstart doctor`: what this machine can do, and which settings follow from it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

import psutil
import torch

from headstart.core import artifact
from headstart.core.extras import install_command
from headstart.core.processes import cores
from headstart.stages.runs import environment
from headstart.training import precision
from headstart.training.devices import peak_flops

_EXTRAS = {
    "corpus": ("daft",),
    "search": ("sentence_transformers", "usearch"),
    "export": ("onnx", "onnxruntime", "openvino"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "datasets": ("datasets",),
    "stores": ("s3fs", "gcsfs", "adlfs"),
    "probe": ("captum",),
    "study": ("ray", "submitit"),
    "quant": ("bitsandbytes",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}
"""Modules by which an installed extra is recognized."""


def run() -> dict[str, Any]:
    """Return facts about processor, memory, disk, packages and compiler."""
    device = precision.default_device()
    name = precision.device_name(device)
    peak = peak_flops(name, precision.resolve("auto", device))
    return {
        "versions": artifact.versions(),
        "device": name,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().available / 1e9, 1),
        "allocator": environment.allocator(),
        "waiting": environment.threads(),
        "disk_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "instructions": sorted(precision.cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16"}),
        "precision": precision.resolve("auto", device),
        "attention": "eager" if device.type == "cpu" else "sdpa",
        "peak_tflops": peak and peak / 1e12,
        "compiler": next((name for name in ("g++", "clang++", "cl") if shutil.which(name)), None),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "extras": {name: all(importlib.util.find_spec(m) for m in modules) for name, modules in _EXTRAS.items()},
    }


def render(facts: dict[str, Any]) -> str:
    """Return the facts as lines of text, with the settings that follow."""
    lines = [
        "versions    " + ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
        f"device      {facts['device']}, {facts['cores']} cores, {facts['threads']} threads",
        f"memory      {facts['memory_gb']} GB free; disk {facts['disk_gb']} GB free here",
        f"allocator   {facts['allocator']}",
        f"waiting     threads {facts['waiting']} ({environment.WAIT_POLICY})",
        f"precision   {facts['precision']} by `training.precision: auto` ({', '.join(facts['instructions'])})",
        f"attention   {facts['attention']}, in networks of transformers that have the choice",
    ]
    if facts["device"] != "cpu":
        peak = facts["peak_tflops"]
        known = "not in the table, so no MFU is logged" if peak is None else f"{peak:,.0f} TFLOP/s by its data sheet"
        lines.append(f"peak        {known}")
    if facts["compiler"]:
        advice = "`training.torch_compile: true` is faster for runs of more than about five minutes"
        lines.append(f"compiler    {facts['compiler']}; {advice}")
    else:
        lines.append("compiler    none: `training.torch_compile` cannot be used")
    if facts["load"] is not None and facts["load"] > 0.5 * (facts["cores"] or 1):
        lines.append(f"load        {facts['load']}: other processes are running, so measured speeds will be low")
    for name, installed in facts["extras"].items():
        lines.append(f"extra       {name}: " + ("installed" if installed else f"missing; {install_command(name)}"))
    return "\n".join(lines)
