"""Arrays in a store: the items of the local array, within the limit of the cache, whatever fails on the way."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.faults.campaigns.file_server import TRANSIENT, FaultyServer, Files

from headstart.core.errors import DataError, RecipeError, ResourceError
from headstart.corpus.read import attempts, blocks, stores
from headstart.corpus.read.blocks import BlockCache, RemoteArray

LOCAL = {
    "tokens-00000.bin": np.random.default_rng(0).integers(0, 1 << 16, 50_000).astype("<u2"),
    "tokens-00001.bin": np.random.default_rng(1).integers(0, 1 << 16, 12_345).astype("<u2"),
}
LIMIT = 32 << 10


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(blocks, "SMALL_BLOCK_BYTES", 4096)
    monkeypatch.setattr(blocks, "LARGE_BLOCK_BYTES", 16384)


@pytest.fixture
def server() -> Iterator[tuple[FaultyServer, str]]:
    files = Files({name: array.tobytes() for name, array in LOCAL.items()})

    def replace(path: str) -> None:
        files.contents[path] = files.contents[path][::-1]

    faulty = FaultyServer(files, replace=replace)
    with faulty.served() as address:
        yield faulty, address


def arrays(address: str, folder: Path, limit: int = LIMIT) -> tuple[BlockCache, list[RemoteArray]]:
    cache = BlockCache([stores.list_objects(f"{address}/{name}").objects[0] for name in LOCAL], limit, folder)
    return cache, [RemoteArray(cache, i, np.dtype("<u2")) for i in range(len(LOCAL))]


def positions(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size - 32, 16)[:, None] + np.arange(32)


@pytest.mark.parametrize("limit", [4096, LIMIT, 1 << 20])
def test_items_are_those_of_the_local_array_within_the_limit(
    limit: int, server: tuple[FaultyServer, str], tmp_path: Path
) -> None:
    faulty, address = server
    rng = random.Random(0)
    faulty.plan = lambda method, path: rng.choice(TRANSIENT) if rng.random() < 0.05 else None
    cache, remote = arrays(address, tmp_path, limit)
    for array, local in zip(remote, LOCAL.values(), strict=True):
        assert len(array) == len(local)
        for seed in range(4):
            where = positions(seed, len(local))
            items = array[where]
            assert np.array_equal(items, local[where]) and items.dtype == local.dtype
            assert cache.disk_bytes() <= limit
        assert np.array_equal(array[100:9000], local[100:9000]) and np.array_equal(array[:], local)
        assert array[:0].shape == (0,) and np.array_equal(array[10:20:3], local[10:20:3])
    assert not list(tmp_path.iterdir()), "the cache has no name, so that a killed process leaves nothing behind"


def test_a_cache_that_holds_everything_requests_each_block_once(
    server: tuple[FaultyServer, str], tmp_path: Path
) -> None:
    faulty, address = server
    _, remote = arrays(address, tmp_path, 1 << 20)
    listed = len(faulty.requests)
    for _ in range(3):
        assert all(np.array_equal(array[:], local) for array, local in zip(remote, LOCAL.values(), strict=True))
    assert len(faulty.requests) - listed == sum(-(-array.nbytes // 16384) for array in LOCAL.values())


def test_threads_and_processes_share_an_array(server: tuple[FaultyServer, str], tmp_path: Path) -> None:
    _, address = server
    _, (array, _) = arrays(address, tmp_path)
    local = LOCAL["tokens-00000.bin"]

    def is_right(seed: int) -> bool:
        where = positions(seed, len(local))
        return np.array_equal(array[where], local[where])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(is_right, range(24)))
    child = os.fork()
    if child == 0:
        os._exit(0 if all(is_right(seed) for seed in range(5)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and is_right(7)
    # As a DataLoader that does not fork passes it to a worker.
    other = copy.deepcopy(array)
    assert np.array_equal(other[:], local)


@pytest.mark.parametrize("fault", [*TRANSIENT, "403", "replaced"])
def test_what_cannot_be_read_is_an_error_that_names_the_object(
    fault: str, server: tuple[FaultyServer, str], tmp_path: Path
) -> None:
    faulty, address = server
    _, (array, _) = arrays(address, tmp_path)
    faulty.plan = lambda method, path: fault
    with pytest.raises(DataError, match=r"tokens-00000\.bin (cannot be read|was replaced)"):
        array[:]
    # The error is not kept: a later request may succeed.
    faulty.plan = lambda method, path: None
    if fault != "replaced":
        assert np.array_equal(array[:], LOCAL["tokens-00000.bin"])


def test_a_full_disk_is_named(server: tuple[FaultyServer, str], tmp_path: Path) -> None:
    _, address = server
    cache, (array, _) = arrays(address, tmp_path)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), cache._blocks.file.fileno())
        with pytest.raises(
            ResourceError, match=r"the disk filled up while blocks of a remote corpus .* HEADSTART_CACHE_GB"
        ):
            array[:]


@pytest.mark.parametrize("text", ["many", "-1", "0", "nan"])
def test_a_wrong_limit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADSTART_CACHE_GB", text)
    with pytest.raises(RecipeError, match=f"HEADSTART_CACHE_GB is '{text}'"):
        blocks.cache_bytes()
    monkeypatch.delenv("HEADSTART_CACHE_GB")
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path))
    assert blocks.cache_bytes() == 10_000_000_000 and blocks.cache_folder() == tmp_path


def test_what_was_fetched_in_advance_is_not_requested_again(server: tuple[FaultyServer, str], tmp_path: Path) -> None:
    faulty, address = server
    _, (remote, _) = arrays(address, tmp_path, 1 << 20)
    listed, local = len(faulty.requests), LOCAL["tokens-00000.bin"]
    remote.prefetch(1000, 20_000)
    assert np.array_equal(remote[1000:20_000], local[1000:20_000])
    assert len(faulty.requests) - listed == -(-40_000 // 16384)
