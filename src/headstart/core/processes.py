"""What all worker processes share: a clean birth, without the program's main module, and no life as an orphan."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import ModuleType


def cores() -> int:
    """Return how many cores are this process's to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clean_context() -> BaseContext:
    """Return a way to start processes that copies no lock or thread of this one."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the program's main module, which a worker has no use for: a script would otherwise run again in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def die_with_parent() -> None:
    """Let this process die with the one that started it, by whatever death."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
