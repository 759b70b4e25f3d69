"""Encodes texts on all cores: in this process while there are few, in a pool of processes when there are more.

tokenizers has its own threads, but the Python work around them would keep one core busy while the others wait.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager

from tokenizers import Tokenizer

from headstart.core.processes import clean_context, cores, exit_with_parent, without_main
from headstart.tokens.word_cache import EncodedBatch, WordCache

POOL_THRESHOLD_CHARACTERS = 8 << 20
"""Characters that are encoded in this process before a pool is started: for less text its start costs more."""
_MAX_WORKERS = 8
"""More workers would be idle: the process that splits sentences and writes shards keeps up with about eight."""
_PARALLELISM = "TOKENIZERS_PARALLELISM"


def encode_batches(
    batches: Iterable[Sequence[str]], tokenizer: str, in_process: bool = False
) -> Iterator[EncodedBatch]:
    """Yield the ids of each batch of texts, in order, for a tokenizer that is given as its JSON.

    No special tokens are added, and the name of a special token in a text is encoded as text. At most two batches per
    worker are read ahead. `in_process` starts no pool, however much text there is.
    """
    remaining, workers = iter(batches), 1 if in_process else _worker_count()
    yield from _encode_here(remaining, tokenizer, POOL_THRESHOLD_CHARACTERS if workers > 1 else math.inf)
    yield from _encode_in_pool(remaining, tokenizer, workers)


def _encode_here(batches: Iterator[Sequence[str]], tokenizer: str, limit: float) -> Iterator[EncodedBatch]:
    """Encode in this process until `limit` characters are encoded or no batch is left."""
    cache, characters = WordCache(_text_only(tokenizer)), 0
    with _on_all_cores():
        for batch in batches:
            yield cache.encode(batch)
            characters += sum(map(len, batch))
            if characters >= limit:
                return


def _encode_in_pool(batches: Iterator[Sequence[str]], tokenizer: str, workers: int) -> Iterator[EncodedBatch]:
    pending = deque[Future[EncodedBatch]]()
    pool: ProcessPoolExecutor | None = None
    try:
        for batch in batches:
            pool = pool or ProcessPoolExecutor(workers, clean_context(), initializer=_start, initargs=(tokenizer,))
            with without_main():
                pending.append(pool.submit(_encode, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _worker_count() -> int:
    """Return the number of processes that encode: one per core, at most RAYON_NUM_THREADS, and one in a daemon."""
    if multiprocessing.current_process().daemon:
        return 1
    return min(int(os.environ.get("RAYON_NUM_THREADS") or cores()), cores(), _MAX_WORKERS)


_worker_caches: list[WordCache] = []
"""The cache of a worker process."""


def _start(tokenizer: str) -> None:
    """Set up a worker. It ignores SIGINT, which the process that started it handles."""
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[_PARALLELISM] = "false"
    _worker_caches.append(WordCache(_text_only(tokenizer)))


def _encode(texts: Sequence[str]) -> EncodedBatch:
    return _worker_caches[-1].encode(texts)


def _text_only(tokenizer: str) -> Tokenizer:
    """Return a tokenizer that encodes "[MASK]" in raw text by its characters, and never truncates or pads."""
    backend = Tokenizer.from_str(tokenizer)
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


@contextmanager
def _on_all_cores() -> Iterator[None]:
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
