"""Pre-training on token shards in a store, with latency and failures, against the same shards on the local disk.

Each answer of the store takes 20 ms, and 2 % of the requests fail. The cache holds all tokens, or a quarter of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pretraining import Ours
from side_by_side import DATA, arguments, in_turns, report

from headstart.corpus.read import stores
from headstart.corpus.read.blocks import BlockCache, RemoteArray
from headstart.tokens.shards import Shards

GOAL = 0.95
_OVERRIDES = (
    "warm_start=null", "training.torch_compile=false", "training.optim=adamw", "training.report_to=none",
    f"corpus={{files: ['{DATA}/corpora/eltec-novels/*.parquet'], validation: 0.05, prepared: runs/prepared-novels}}",
)  # fmt: skip
_BUFFERED = ("training.shuffle_buffer_tokens=1048576", "training.shuffle_block_tokens=131072")
_SERVER = """
import random, sys, threading
from pathlib import Path
sys.path.insert(0, "tests/faults/campaigns")
from file_server import TRANSIENT, FaultyServer, Files
folder, rng = Path(sys.argv[1]), random.Random(0)
server = FaultyServer(Files({path.name: path.read_bytes() for path in folder.glob("tokens-*.bin")}), latency=0.02)
server.plan = lambda method, path: rng.choice(TRANSIENT) if rng.random() < 0.02 else None
with server.served() as address:
    print(address, flush=True)
    sys.stdin.read()
    print(len(server.requests), flush=True)
"""
"""A process of its own, so that the server does not wait for the interpreter that trains."""


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """Serve the token files of a folder at the address that is yielded."""
    command = [sys.executable, "-c", _SERVER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


class Remote(Ours):
    """Headstart's loop on shards of which only the small files are local."""

    def __init__(self, address: str, cached: float, *overrides: str) -> None:
        """Take the address of the token files and the fraction of them that the cache holds."""
        self.address, self.cached = address, cached
        self.cache: Any = None
        super().__init__(*_OVERRIDES, *overrides)

    def opened(self, shards: Shards) -> Shards:
        """Open the tokens at the address."""
        names = sorted(path.name for path in shards.folder.glob("tokens-*.bin"))
        objects = [stores.list_objects(f"{self.address}/{name}").objects[0] for name in names]
        limit = int(self.cached * sum(stored.size for stored in objects))
        stretch = self.recipe.training.stretch * np.dtype(shards.counts["dtype"]).itemsize
        self.cache = BlockCache(objects, limit, Path(tempfile.mkdtemp()), stretch)

        def open_tokens(name: str, dtype: np.dtype[Any], length: int) -> RemoteArray:
            return RemoteArray(self.cache, names.index(name), dtype)

        return Shards(shards.folder, open_tokens)


def main() -> None:
    """Train in turns on local and remote shards; print one line of JSON per size of the cache."""
    options = arguments(__doc__ or "", repetitions=13)
    local = Ours(*_OVERRIDES)
    folder = local.prepared.corpora[0].train.folder
    with store(folder) as address:
        for cached, overrides in ((1.0, ()), (0.25, ()), (0.25, _BUFFERED)):
            remote = Remote(address, cached, *overrides)
            steps = local.warm_up(options.quick)
            remote.warm_up(options.quick)
            rates = in_turns(
                options.repetitions,
                remote=lambda: remote.tokens_per_second(steps),  # noqa: B023
                local=lambda: local.tokens_per_second(steps),  # noqa: B023
            )
            report(
                f"pre-training from a store, the cache holds {cached:.0%} of the tokens"
                + (", rows shuffled in buffers" if overrides else ""), rates["remote"],
                rates["local"], GOAL, "tokens/s", cache_limit_bytes=remote.cache.limit_bytes,
                cache_bytes=remote.cache.disk_bytes(),
            )  # fmt: skip
            assert remote.cache.disk_bytes() <= remote.cache.limit_bytes


if __name__ == "__main__":
    main()
