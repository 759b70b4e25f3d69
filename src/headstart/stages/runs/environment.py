"""What must stand in the environment before libraries load: their silence, and how the allocator keeps memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TUNABLES = "GLIBC_TUNABLES"
"""The variable that glibc reads when a process starts, and never again. One that is set is left as it is."""
KEEP = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296:glibc.malloc.hugetlb=1"
"""Freed memory stays with the process, in huge pages: a training step asks for the same tensors again and again, and
by default glibc gives the large ones back each time, for the system to clear page by page (docs/lab-notes.md)."""
_COMPUTING = ("pretrain", "finetune", "evaluate", "generate", "index", "study", "plan")


def silence(processes: int) -> None:
    """Keep libraries from talking over what `headstart` says, unless somebody asked them to."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if processes > 1:
        # Every process would say that it looks for parameters that a batch leaves out, which is what is meant.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def keep_memory(arguments: Sequence[str]) -> None:
    """Start this process anew with the allocator's settings, if its verb computes."""
    if next((word for word in arguments if not word.startswith("-")), "") in _COMPUTING:
        restart()


def restart() -> None:
    """Start this very process anew, once, with the allocator's settings."""
    if TUNABLES not in os.environ and _has_glibc():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, TUNABLES: KEEP})


def allocator() -> str:
    """Say in words what the allocator does with freed memory in a process that trains."""
    if not _has_glibc():
        return "the system's own"
    if os.environ.get(TUNABLES, KEEP) != KEEP:
        return f"as {TUNABLES} says: {os.environ[TUNABLES] or 'nothing'}"
    return f"keeps freed memory, in huge pages; {TUNABLES}='' turns that off"


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False
