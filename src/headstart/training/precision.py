"""Number formats (bf16, fp16, fp32), chosen by what the machine supports."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

import torch

from headstart.core.errors import ResourceError, first_line
from headstart.training.settings import DEVICE, DEVICE_PATTERN


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags; empty if the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    # ARM lists them as `Features`.
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(named, []))


def has_fast_bf16(device: torch.device) -> bool:
    """Return True if bf16 products run in hardware: AMX, AVX-512 BF16 or ARM's BF16 on a CPU, or such a GPU."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(cpu_flags() & {"amx_bf16", "avx512_bf16", "bf16"})


def resolve(precision: str, device: torch.device) -> str:
    """Resolve `auto` to bf16 or fp32; return other values unchanged."""
    return ("bf16" if has_fast_bf16(device) else "fp32") if precision == "auto" else precision


def dtype(precision: str) -> torch.dtype:
    """Return the torch dtype of a number format."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context for forward passes."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype(precision))


def set_tf32(tf32: bool | None, device: torch.device) -> None:
    """Let matrix products in fp32 use TF32, or not; None leaves torch's own setting.

    Raises:
        ResourceError: the device is no GPU of CUDA with TF32.
    """
    if tf32 is None:
        return
    if tf32 and not (device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)):
        raise ResourceError(
            f"`training.tf32` is true, but the device is {device_name(device)}",
            allowed="TF32 is a format of NVIDIA's GPUs since Ampere",
            do="Remove `training.tf32`",
        )
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def missing_kernel(error: RuntimeError, precision: str, device: torch.device) -> ResourceError | None:
    """Return the error for users if an operation has no kernel for a number format; None for other errors."""
    if precision == "fp32" or ("not implemented for" not in str(error) and "Unsupported dtype" not in str(error)):
        return None
    return ResourceError(
        f"`training.precision` is {precision}, which an operation lacks on {device_name(device)} ({first_line(error)})",
        do="Set `training.precision` to fp32" + (", or to bf16" if precision == "fp16" else ""),
    )


def pins_memory(device: torch.device) -> bool:
    """Return True if batches are copied to the device from pinned memory, which the host need not wait for."""
    return device.type in ("cuda", "xpu")


def default_device(name: str = "auto") -> torch.device:
    """Return the device of a `training.device`; auto is that of `DEVICE`, the GPU if there is one, or the CPU.

    Raises:
        ResourceError: torch cannot use that device here.
    """
    setting = "`training.device`"
    if name == "auto":
        name, setting = os.environ.get(DEVICE) or "auto", f"the device (`--device`, {DEVICE})"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.match(DEVICE_PATTERN, name):
        raise ResourceError(f"{setting} is {name!r}", allowed="It is auto, cpu, cuda, cuda:N, xpu, xpu:N or mps")
    device = torch.device(name)
    available = ["cpu", *(kind for kind in ("cuda", "xpu", "mps") if getattr(torch, kind).is_available())]
    if device.type not in available:
        raise ResourceError(
            f"{setting} is {name}, but torch {torch.__version__} cannot use {device.type} on this machine",
            allowed=f"Available here: {', '.join(available)}",
            do=f"Set it to auto, or install a driver and a build of torch for {device.type}",
        )
    if device.index is not None and device.index >= getattr(torch, device.type).device_count():
        raise ResourceError(
            f"{setting} is {name}, but there are {getattr(torch, device.type).device_count()} such devices",
            allowed="Devices are counted from 0",
            do="Choose another one",
        )
    return device


def device_name(device: torch.device) -> str:
    """Return the name of a device: its model for a GPU, else its type."""
    return str(getattr(torch, device.type).get_device_name(device)) if device.type in ("cuda", "xpu") else device.type
