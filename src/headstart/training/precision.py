"""Number formats (bf16, fp32), chosen by what the machine supports."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

import torch


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
    return torch.bfloat16 if precision == "bf16" else torch.float32


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context for forward passes."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def pins_memory(device: torch.device) -> bool:
    """Return True if batches are copied to the device from pinned memory, which the host need not wait for."""
    return device.type in ("cuda", "xpu")


def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
