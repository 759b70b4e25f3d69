"""The processes that train one model together, as `torchrun` starts them. A single process is a world of size 1."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from headstart.core.log import logger
from headstart.core.processes import LOOPBACK, cores, loopback_interface
from headstart.training.heartbeat import Heartbeat, is_closed, is_collective_error

T = TypeVar("T")

_PATIENT = timedelta(days=1)
"""How long processes wait outside of steps for one that responds: rank 0 may tokenize a corpus meanwhile."""
_SLICE = timedelta(seconds=1)
"""How long one wait lasts, between looks at the heartbeats of the others."""
_MEETING = timedelta(minutes=10)
"""How long processes wait at least until all have started: they import torch at different speeds."""
DEFAULT_TIMEOUT = 600.0


@dataclass(frozen=True)
class World:
    """Rank and size of the process group, and the collectives that the loop needs; all values travel as JSON."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    """Number of processes on this machine."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds after which a process that does not join a step, or does not respond at all, ends the run."""
    group: dist.ProcessGroup | None = None
    """The process group of the values that travel as JSON. It waits longer than the group of gradients."""
    heartbeat: Heartbeat | None = None

    @property
    def is_main(self) -> bool:
        """True on rank 0, which prepares data, evaluates, logs and saves."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        self.all_reduce_sum(0.0)

    def all_reduce_sum(self, *values: float, in_step: bool = False) -> list[float]:
        """Return the sum of each value over all processes, identical to the bit on every rank.

        With `in_step`, all processes come here at about the same time, and one that is late by the timeout is an error.
        Otherwise a process may work for hours first, as long as it responds.
        """
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        self._wait(dist.all_reduce(sums, group=self.group, async_op=True), in_step)
        _wait_for_release(sums)
        return [float(value) for value in sums]

    def broadcast(self, value: T) -> T:
        """Broadcast a JSON-serializable value from rank 0 to all ranks."""
        if self.size == 1:
            return value
        message = _encode(value) if self.is_main else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(message)])
        self._wait(dist.broadcast(length, 0, group=self.group, async_op=True))
        buffer = message if self.is_main else torch.empty(int(length), dtype=torch.uint8)
        self._wait(dist.broadcast(buffer, 0, group=self.group, async_op=True))
        _wait_for_release(length, buffer)
        received: T = value if self.is_main else _decode(buffer)
        return received

    def all_gather(self, value: T) -> list[T]:
        """Return the JSON-serializable values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        message = _encode(value)
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        own = torch.tensor([len(message)])
        self._wait(dist.all_gather(lengths, own, group=self.group, async_op=True))
        # all_gather needs tensors of one size.
        padded = torch.zeros(max(int(length) for length in lengths), dtype=torch.uint8)
        padded[: len(message)] = message
        buffers = [torch.empty_like(padded) for _ in range(self.size)]
        self._wait(dist.all_gather(buffers, padded, group=self.group, async_op=True))
        _wait_for_release(own, *lengths, padded, *buffers)
        return [_decode(buffer[: int(length)]) for buffer, length in zip(buffers, lengths, strict=True)]

    def apart(self) -> World:
        """Return the same processes with a process group of their own, for collectives in another thread."""
        if self.size == 1:
            return self
        group = dist.new_group(backend="gloo", timeout=_PATIENT)
        keep_alive(group)
        return replace(self, group=group)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, then on the other ranks, which find its results on disk."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Give this process the threads of all processes on its machine while they wait for it."""
        before = torch.get_num_threads()
        if self.local_size > 1:
            torch.set_num_threads(before * self.local_size)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _wait(self, work: Any, in_step: bool = False) -> None:
        """Wait for a collective while the others respond; if it is part of a step, at most for the timeout."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError:
                # The slice is over, or the collective failed, or both: it may have completed in this moment.
                if work.is_completed():
                    work.wait()
                    return
                if self.heartbeat is None:
                    # The group has just met, and all processes come here at once.
                    if time.monotonic() > deadline:
                        raise
                    continue
            self.heartbeat.require_all()
            if in_step and time.monotonic() > deadline:
                raise self.heartbeat.late()


def _wait_for_release(*tensors: torch.Tensor) -> None:
    """Wait until gloo's threads have released the tensors of a collective, which is soon after it has returned.

    A thread needs the GIL to release a tensor of Python's. If the interpreter ends first, it ends that thread, and the
    process aborts with "terminate called without an active exception".
    """
    while any(tensor._use_count() > 1 for tensor in tensors):  # type: ignore[attr-defined]
        time.sleep(0)


def _encode(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(message: torch.Tensor) -> Any:
    return json.loads(bytes(message.tolist()))


@contextmanager
def joined(timeout: float = DEFAULT_TIMEOUT) -> Iterator[World]:
    """Join the process group that `torchrun` has started, and leave it when the block ends.

    Raises:
        LateProcessError: a process was frozen, or late for a step, for more than `timeout` seconds.
    """
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
    limit = timedelta(seconds=timeout)
    meeting = max(limit, _MEETING)
    if size == local_size and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        rank, host = int(os.environ["RANK"]), LOOPBACK
        dist.init_process_group(backend, store=_local_store(rank, size), rank=rank, world_size=size, timeout=meeting)
    else:
        dist.init_process_group(backend, timeout=meeting)
        rank, host = dist.get_rank(), os.environ["MASTER_ADDR"]
        if size > local_size and rank == 0:
            _log_open_ports()
    distributed_c10d._set_pg_timeout(limit)
    keep_alive(dist.group.WORLD)
    group = dist.new_group(backend="gloo", timeout=_PATIENT)
    keep_alive(group)
    world = World(rank, size, local_size, timeout, group)
    # The store of torchrun outlives a restart of the processes, so each start has keys of its own.
    start = world.broadcast(uuid.uuid4().hex)
    heartbeat = Heartbeat(rank, size, timeout, start, host, int(os.environ["MASTER_PORT"]))
    world = replace(world, heartbeat=heartbeat)
    try:
        # A process that fails at once would close the store while others still connect through it.
        world.barrier()
        yield world
    except RuntimeError as error:
        if not is_collective_error(error):
            raise
        raise heartbeat.late(is_closed(error)) from error
    finally:
        heartbeat.stop()
        dist.destroy_process_group()


def _local_store(rank: int, size: int) -> dist.TCPStore:
    """Return the store of processes on one machine, which listens on the loopback interface, as gloo and NCCL then do.

    torch's own store listens on all interfaces, without authentication.
    """
    port = int(os.environ["MASTER_PORT"])
    if (interface := loopback_interface()) is not None:
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    if rank:
        return dist.TCPStore(LOOPBACK, port, size, is_master=False, timeout=_PATIENT)
    # The store takes the socket over and closes it.
    listener = socket.create_server((LOOPBACK, port)).detach()
    return dist.TCPStore(LOOPBACK, port, size, is_master=True, timeout=_PATIENT, master_listen_fd=listener)


def _log_open_ports() -> None:
    """Log what processes on several machines open to the network."""
    address, port = os.environ.get("MASTER_ADDR", "rank 0's machine"), os.environ.get("MASTER_PORT", "?")
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "the interface of its host name")
    logger.warning(
        f"the processes run on several machines: {address} listens on port {port} of all interfaces, and every process "
        f"on a free port of {interface}, without authentication or encryption; use a private network"
    )


def keep_alive(group: object) -> None:
    """Add a reference to a process group that is never released, so that Python does not destruct it.

    Gloo's threads need the GIL to release the tensors they sent last, and the group's destructor joins those threads
    while it holds the GIL: a deadlock in torch 2.13, seen in one of thirty runs on a busy machine.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
