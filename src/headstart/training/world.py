"""The processes that train one model together, as `torchrun` starts them; a lone process is a world of one."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from headstart.core.processes import cores

T = TypeVar("T")

_PATIENCE = timedelta(days=1)
"""How long a process waits for another: the first one may tokenise a corpus meanwhile. One that dies is noticed at
once, by its closed connection."""


@dataclass(frozen=True)
class World:
    """Who this process is among those that train together, and the few words they exchange."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    """How many of them share this machine."""

    @property
    def leads(self) -> bool:
        """Say whether this process is the one that prepares, measures, logs and writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all have come here."""
        self.total(0.0)

    def total(self, *values: float) -> list[float]:
        """Return the sums of all processes' numbers, the same to the bit in each of them."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def told(self, value: T) -> T:
        """Return the leader's value, of plain JSON, whatever the others bring."""
        if self.size == 1:
            return value
        letters = json.dumps(value).encode() if self.leads else b""
        length = torch.tensor([len(letters)])
        dist.broadcast(length, 0)
        message = torch.tensor(list(letters) if self.leads else [0] * int(length), dtype=torch.uint8)
        dist.broadcast(message, 0)
        heard: T = value if self.leads else json.loads(bytes(message.tolist()))
        return heard

    def gathered(self, value: T) -> list[T]:
        """Return the values of all processes in the order of their ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the leader through the block before the others, who find what it has made."""
        if not self.leads:
            self.wait()
        yield
        if self.leads:
            self.wait()

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Give this process the threads of all on its machine, while they wait for it."""
        before = torch.get_num_threads()
        if self.local_size > 1:
            torch.set_num_threads(before * self.local_size)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that `torchrun` has started beside this one, and leave them in the end."""
    size, local_size = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // local_size))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=_PATIENCE)
    _never_taken_down(dist.group.WORLD)
    try:
        yield World(dist.get_rank(), size, local_size)
    finally:
        dist.destroy_process_group()


def _never_taken_down(group: object) -> None:
    """Keep a process group until the process ends.

    Gloo's threads need Python's lock to let go of what they sent last, and a group that Python takes down waits for
    its threads with that lock held: a deadlock of torch 2.13, met in one run of thirty on a busy machine.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
