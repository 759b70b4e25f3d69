"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Deliver an interrupt that comes inside the block at its end.

    A step changes weights, optimiser and counters one after the other; saved between two of them, a run
    could not be gone on with exactly. Only the main thread receives signals, so elsewhere nothing is done.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(came[0], None)
