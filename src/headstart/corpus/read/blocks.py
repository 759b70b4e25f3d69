"""Arrays in stored objects: blocks are fetched by several threads, and kept on disk up to a limit.

    RemoteArray[positions] ─ BlockCache ─ blocks on disk, or ObjectReader.read in a thread ─ items

The blocks are in one temporary file that has no name, so nothing is left behind when a process is killed. Each process
has its own.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.core.data import Ints
from headstart.core.errors import RecipeError, ResourceError
from headstart.core.faults import full_disk
from headstart.corpus.read.stores import ObjectReader, StoredObject

LARGE_BLOCK_BYTES, SMALL_BLOCK_BYTES = 1 << 20, 1 << 16
"""Large blocks if the cache holds all of them, so that there are few requests. Otherwise, if rows are read in any
order, small ones: most of a block that is evicted before its other rows are needed was fetched in vain."""
CONNECTIONS = 8
_SLICE_ITEMS = 1 << 20
_FOLDER, _LIMIT = "HEADSTART_CACHE", "HEADSTART_CACHE_GB"
_DEFAULT_GB = 10.0


def cache_folder() -> Path:
    """Return the folder for copies of remote files: HEADSTART_CACHE, or `headstart` in the user's cache folder."""
    if os.environ.get(_FOLDER):
        return Path(os.environ[_FOLDER])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"


def cache_bytes() -> int:
    """Return the limit for the blocks of one process: HEADSTART_CACHE_GB, or 10 GB."""
    text = os.environ.get(_LIMIT) or str(_DEFAULT_GB)
    try:
        size = float(text) * 1e9
    except ValueError:
        size = 0.0
    if not SMALL_BLOCK_BYTES <= size < 1e18:
        raise RecipeError(
            f"{_LIMIT} is {text!r}",
            allowed="It is the size in GB of the local cache of a corpus in a store, and at least 0.0001",
            do=f"Set it to a number, or unset it for {_DEFAULT_GB:g} GB",
        )
    return int(size)


class BlockCache:
    """Blocks of some objects, of which those used last are kept on disk."""

    def __init__(self, objects: Sequence[StoredObject], limit_bytes: int, folder: Path, stretch_bytes: int = 0) -> None:
        """Choose the size of the blocks and open the temporary file in `folder`; nothing is requested yet.

        `stretch_bytes` is the length of the contiguous stretches in which the objects are read, 0 if in any order.
        """
        self.objects, self.limit_bytes, self.folder = list(objects), limit_bytes, folder
        self.stretch_bytes = stretch_bytes
        fits = sum(stored.size for stored in self.objects) <= limit_bytes
        # A stretch reaches into a block at each end, most of which is fetched for other stretches: an eighth of it.
        part = min(LARGE_BLOCK_BYTES, stretch_bytes >> 3)
        self.block_bytes = LARGE_BLOCK_BYTES if fits else max(SMALL_BLOCK_BYTES, 1 << max(part, 1).bit_length() - 1)
        self._blocks = _Blocks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, (self.objects, self.limit_bytes, self.folder, self.stretch_bytes)

    def take(self, index: int, positions: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the items at some positions of the object `objects[index]`, which is an array of `dtype`."""
        self._reopen()
        per_block = self.block_bytes // dtype.itemsize
        numbers, inverse = np.unique(positions // per_block, return_inverse=True)
        inverse, offsets = inverse.reshape(positions.shape), positions % per_block
        out = np.empty(positions.shape, dtype=dtype)
        with self._blocks.lock:
            slots = np.asarray([self._blocks.slot((index, number)) for number in numbers.tolist()], dtype=np.int64)
            slot = slots[inverse]
            cached = slot >= 0
            out[cached] = self._blocks.array.view(dtype)[slot[cached] * per_block + offsets[cached]]
            missing = np.flatnonzero(slots < 0).tolist()
            requested = {i: self._blocks.request((index, int(numbers[i]))) for i in missing}
        # All, so that after an error no request is under way whose error a later call would get.
        wait(requested.values())
        for i, block in requested.items():
            selected = inverse == i
            out[selected] = np.frombuffer(block.result(), dtype=dtype)[offsets[selected]]
        return out

    def prefetch(self, index: int, start: int, stop: int, dtype: np.dtype[Any]) -> None:
        """Start to fetch the items in [start, stop) of an array, unless they are in the file; nothing waits for them.

        If a request fails, `take` makes it again and raises.
        """
        self._reopen()
        first, last = start * dtype.itemsize // self.block_bytes, -(-stop * dtype.itemsize // self.block_bytes)
        with self._blocks.lock:
            for number in range(first, last):
                if self._blocks.slot((index, number)) < 0:
                    self._blocks.request((index, number))

    def _reopen(self) -> None:
        """Open a file and threads of this process, if it was forked."""
        if self._blocks.process != os.getpid():
            # Threads do not survive a fork, and two processes must not write to the same file.
            self._blocks = _Blocks(self)

    def disk_bytes(self) -> int:
        """Return the disk space that the blocks of this process use."""
        return os.fstat(self._blocks.file.fileno()).st_blocks * 512


class _Blocks:
    """The blocks of one process: a file of equal slots, and the threads that fetch. The lock guards all of it."""

    def __init__(self, cache: BlockCache) -> None:
        self.process, self.lock = os.getpid(), threading.Lock()
        self._objects, self._size, self._folder = cache.objects, cache.block_bytes, cache.folder
        needed = sum(-(-stored.size // self._size) for stored in self._objects)
        count = max(1, min(needed, cache.limit_bytes // self._size))
        self._folder.mkdir(parents=True, exist_ok=True)
        self.file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # closed with the cache
        weakref.finalize(self, self.file.close)
        # Sparse: the disk holds what was written.
        self.file.truncate(count * self._size)
        self.array = np.asarray(np.memmap(self.file, dtype=np.uint8, mode="r", shape=(count * self._size,)))
        self._slots: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._free = list(range(count))
        self._pending: dict[tuple[int, int], Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="headstart-blocks")
        self._thread = threading.local()

    def slot(self, key: tuple[int, int]) -> int:
        """Return the slot of a block, which counts as used now; -1 if it is not in the file."""
        if key not in self._slots:
            return -1
        self._slots.move_to_end(key)
        return self._slots[key]

    def request(self, key: tuple[int, int]) -> Future[bytes]:
        """Start to fetch a block, unless that has been started."""
        if key not in self._pending:
            self._pending[key] = self._pool.submit(self._fetch, key)
        return self._pending[key]

    def _fetch(self, key: tuple[int, int]) -> bytes:
        index, number = key
        start = number * self._size
        try:
            reader = self._reader(index)
            data = reader.read(start, min(start + self._size, self._objects[index].size))
            reader.verify()
            with self.lock:
                self._keep(key, data)
        finally:
            with self.lock:
                del self._pending[key]
        return data

    def _reader(self, index: int) -> ObjectReader:
        """Return this thread's reader of an object: the clients of stores are not shared between threads."""
        readers: dict[int, ObjectReader] = self._thread.__dict__.setdefault("readers", {})
        if index not in readers:
            readers[index] = ObjectReader(self._objects[index])
        return readers[index]

    def _keep(self, key: tuple[int, int], data: bytes) -> None:
        """Write a block into a free slot, or into that of the block that was used least recently."""
        slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
        try:
            # Not through the memory map, which on a full disk would end the process with a signal.
            _write(self.file.fileno(), data, slot * self._size)
        except OSError as error:
            self._free.append(slot)
            if (reason := full_disk(error)) is None:
                raise
            raise ResourceError(
                f"{reason} while blocks of a remote corpus were stored in {self._folder}",
                do=f"Free some space, lower {_LIMIT}, or set {_FOLDER} to a folder on another disk",
            ) from error
        self._slots[key] = slot


def _write(file: int, data: bytes, offset: int) -> None:
    """Write all of the data: on a disk that fills up, the system writes a part first."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


class RemoteArray:
    """A one-dimensional array in a stored object, indexed by positions or by a slice, as `numpy.memmap` is."""

    def __init__(self, cache: BlockCache, index: int, dtype: np.dtype[Any]) -> None:
        """Take the object `cache.objects[index]` as an array of `dtype`."""
        self._cache, self._index, self._dtype = cache, index, dtype

    def __len__(self) -> int:
        return self._cache.objects[self._index].size // self._dtype.itemsize

    def prefetch(self, start: int, stop: int) -> None:
        """Start to fetch the items in [start, stop)."""
        self._cache.prefetch(self._index, start, stop, self._dtype)

    def __getitem__(self, key: slice | Ints) -> npt.NDArray[Any]:
        if not isinstance(key, slice):
            return self._cache.take(self._index, key, self._dtype)
        start, stop, step = key.indices(len(self))
        pieces = [
            self._cache.take(self._index, np.arange(first, min(first + _SLICE_ITEMS, stop)), self._dtype)
            for first in range(start, stop, _SLICE_ITEMS)
        ]
        return np.concatenate([np.empty(0, dtype=self._dtype), *pieces])[::step]
