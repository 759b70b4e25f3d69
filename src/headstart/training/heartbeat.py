"""Which processes of a group still respond: each writes a heartbeat into the store at which the group met.

A collective that one process never joins leaves the others waiting. The heartbeat tells a process that is gone or
frozen (its beats stop) from one that works for long, and names the late ones when the others give up.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from headstart.core.errors import HeadstartError

T = TypeVar("T")

_BEATS = 10
"""Beats per timeout; at least one every ten seconds."""
_SLOWEST_SECONDS = 10.0
_REPORT_SECONDS = 10.0
"""How long a process that gives up waits at least for the others to report: on a busy machine they notice later."""
_NO_STORE = "the store at which the processes met, which rank 0 or its launcher holds, does not respond"
_CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_MARKS = (*_CLOSED, "Timed out waiting", "Socket Timeout", "gloo", "NCCL")
"""What torch's errors say if a collective failed because of another process."""


class LateProcessError(HeadstartError):
    """Processes of a group did not join a collective in time."""


class Heartbeat:
    """The beats of this process, and a view of those of the others.

    Properties: the beats are counted, not dated, so clocks need not agree. A beat is one small message to the store.
    The beats of others are read only while this process waits, once per interval.
    """

    def __init__(self, rank: int, size: int, timeout: float, start: str, host: str, port: int) -> None:
        """Connect to the store at an address and write the first beat; `start` names this start."""
        self.rank, self.size, self.timeout = rank, size, timeout
        self.interval = min(_SLOWEST_SECONDS, timeout / _BEATS)
        self._patience = max(2 * self.interval, _REPORT_SECONDS)
        self._connect = lambda: dist.PrefixStore(
            f"headstart/{start}",
            dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)),
        )
        self._ended = threading.Event()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._read_at = -math.inf
        store = self._connect()
        store.set(f"name/{rank}", f"{socket.gethostname()}, process {os.getpid()}")
        store.set(f"beat/{rank}", "0")
        self._store = store
        threading.Thread(target=self._beat, name="headstart-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End the beats of this process, which leaves the group."""
        self._ended.set()

    def require_all(self) -> None:
        """Raise if a process has not responded for longer than the timeout; called repeatedly by one that waits."""
        now = time.monotonic()
        elapsed = now - self._read_at
        if elapsed < self.interval:
            return
        self._read_at = now
        beats = self._within(self.timeout, lambda: self._store.multi_get([f"beat/{r}" for r in range(self.size)]))
        if beats is None:
            raise self._error([0], _NO_STORE)
        # A late reading, after a suspend of the machine for example, proves nothing about the others.
        is_late = elapsed > self.timeout / 2
        for rank, beat in enumerate(beats):
            if is_late or self._seen[rank][0] != beat:
                self._seen[rank] = (beat, now)
        silent = [rank for rank, (_, since) in self._seen.items() if rank != self.rank and now - since > self.timeout]
        if silent:
            raise self._error(silent, "it has shown no sign of life")

    def late(self, closed: bool = False) -> LateProcessError:
        """Return the error for a collective that failed: all that gave up say so, and the others are the late ones.

        With `closed`, a connection was closed instead of silent.
        """
        reported = self._within(self.timeout + self._patience, self._who_reported)
        if reported is None:
            return self._error([0], _NO_STORE)
        missing = [rank for rank in range(self.size) if rank not in reported]
        return self._error(missing, "its connection was closed" if closed else "it did not join a step of the others")

    def _who_reported(self) -> list[int]:
        """Report that this process gave up, wait until others had time for it, and return those that reported."""
        self._store.set(f"late/{self.rank}", "")
        deadline = time.monotonic() + self._patience
        while True:
            reported = [rank for rank in range(self.size) if self._store.check([f"late/{rank}"])]
            if len(reported) == self.size or time.monotonic() > deadline:
                return reported
            time.sleep(self.interval / 10)

    def _error(self, ranks: Sequence[int], reason: str) -> LateProcessError:
        names = self._within(self.interval, lambda: self._store.multi_get([f"name/{r}" for r in ranks])) or []
        named = [f"rank {rank} ({name.decode()})" for rank, name in zip(ranks, names, strict=False)]
        who = ", ".join(named or [f"rank {rank}" for rank in ranks]) or "a process that has reported since"
        return LateProcessError(
            f"rank {self.rank} gave up on {who}: {reason} (`training.ddp_timeout` is {self.timeout:g} s)",
            do="Look at the log and the machine of that process. Run the same command to resume from the last "
            "checkpoint. If a step takes longer than that, raise `training.ddp_timeout`",
        )

    def _within(self, seconds: float, read: Callable[[], T]) -> T | None:
        """Return what the store answers, or None if it does not: the process that holds it may be the frozen one."""
        answer: list[T] = []

        def ask() -> None:
            try:
                answer.append(read())
            except RuntimeError:
                # The connection is closed, or a key is missing after the timeout.
                return

        thread = threading.Thread(target=ask, name="headstart-heartbeat-reader", daemon=True)
        thread.start()
        thread.join(seconds)
        return answer[0] if answer else None

    def _beat(self) -> None:
        number = 0
        try:
            # A connection of its own: one that waits for an answer blocks all that share it.
            store = self._connect()
            while not self._ended.wait(self.interval):
                number += 1
                store.set(f"beat/{self.rank}", str(number))
        except RuntimeError:
            # The store is gone, and with it the group: the main thread notices by itself.
            return


def is_closed(error: RuntimeError) -> bool:
    """Return True if a collective failed because a connection was closed, not because nothing arrived."""
    return any(mark in str(error) for mark in _CLOSED)


def is_collective_error(error: RuntimeError) -> bool:
    """Return True if torch raised an error because another process was late or gone."""
    return isinstance(error, dist.DistError) or any(mark in str(error) for mark in _MARKS)
