"""Environment variables that must be set before libraries load: verbosity, memory allocator, waiting threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headstart.core import faults

TUNABLES = "GLIBC_TUNABLES"
"""The variable that glibc reads once, when a process starts. A value set by the user is kept."""
KEEP = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296:glibc.malloc.hugetlb=1"
"""The process keeps freed memory, in huge pages. A training step allocates the same tensors again and again, and by
default glibc returns the large ones each time, so that the system clears them page by page (docs/lab-notes.md)."""
WAIT_POLICY = "OMP_WAIT_POLICY"
"""How the threads of an operation wait for each other. By default they spin, and beside one other busy process a
spinning thread takes the core that the thread it waits for needs (docs/results/performance.md). A user's value is
kept."""
_MIN_OPEN_FILES = 64
_COMPUTING_VERBS = (
    "pretrain",
    "finetune",
    "multitask",
    "advise",
    "label",
    "probe",
    "export",
    "evaluate",
    "predict",
    "serve",
    "generate",
    "index",
    "study",
    "plan",
)


def silence(processes: int) -> None:
    """Reduce the log output of libraries, unless the user has set it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if processes > 1:
        # Every process would warn that it looks for unused parameters, which is intended.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def wait_passively() -> None:
    """Let threads sleep while they wait for each other, unless the user has set it. Must run before torch loads."""
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")


def threads() -> str:
    """Describe how the threads of a process that trains wait for each other."""
    policy = os.environ.get(WAIT_POLICY, "PASSIVE")
    return "sleep while they wait" if policy.upper() == "PASSIVE" else f"wait as {WAIT_POLICY}={policy} says"


def keep_memory(arguments: Sequence[str]) -> None:
    """Restart this process with the allocator settings if its verb trains or runs a model."""
    if next((word for word in arguments if not word.startswith("-")), "") in _COMPUTING_VERBS:
        restart()


def require_limits(arguments: Sequence[str]) -> None:
    """Raise before the libraries load if a limit of the process is too low: some of them abort without a message."""
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb in (*_COMPUTING_VERBS, "corpus", "search", "bench") and "--help" not in arguments:
        faults.require_address_space()
        faults.require_open_files(_MIN_OPEN_FILES)


def restart() -> None:
    """Replace this process by a new one with the allocator settings, unless they are set already."""
    if TUNABLES not in os.environ and _has_glibc():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, TUNABLES: KEEP})


def allocator() -> str:
    """Describe what the allocator does with freed memory in a process that trains."""
    if not _has_glibc():
        return "the system default"
    if os.environ.get(TUNABLES, KEEP) != KEEP:
        return f"set by {TUNABLES}: {os.environ[TUNABLES] or 'empty'}"
    return f"keeps freed memory, in huge pages ({TUNABLES}='' turns this off)"


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False
