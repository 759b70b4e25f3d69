"""Texts encoded on all cores: in this process while there are few, in processes of their own when there are more.

tokenizers has threads of its own, but what Python does around them would keep one core busy and the others waiting.
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

from headstart.core.processes import clean_context, cores, die_with_parent, without_main
from headstart.tokens.words import Encoded, Words

FEW_CHARACTERS = 8 << 20
"""Text for which other processes are not worth their start."""
_MOST_PROCESSES = 8
"""More would have nothing to do: one process finds sentences and writes about as fast as so many encode."""
_PARALLELISM = "TOKENIZERS_PARALLELISM"


def encoded(batches: Iterable[Sequence[str]], tokenizer: str) -> Iterator[Encoded]:
    """Yield what a tokenizer, given as its JSON, makes of each batch of texts, in their order; few are read ahead.

    No special tokens are added, and the name of one in a text is encoded as text.
    """
    left, processes = iter(batches), _processes()
    yield from _here(left, tokenizer, FEW_CHARACTERS if processes > 1 else math.inf)
    yield from _in_processes(left, tokenizer, processes)


def _here(batches: Iterator[Sequence[str]], tokenizer: str, enough: float) -> Iterator[Encoded]:
    """Encode in this process, until so many characters are through or all is done."""
    words, characters = Words(_text_only(tokenizer)), 0
    with _on_all_cores():
        for batch in batches:
            yield words.encode(batch)
            characters += sum(map(len, batch))
            if characters >= enough:
                return


def _in_processes(batches: Iterator[Sequence[str]], tokenizer: str, processes: int) -> Iterator[Encoded]:
    under_way = deque[Future[Encoded]]()
    pool: ProcessPoolExecutor | None = None
    try:
        for batch in batches:
            pool = pool or ProcessPoolExecutor(processes, clean_context(), initializer=_open, initargs=(tokenizer,))
            with without_main():
                under_way.append(pool.submit(_encode, batch))
            if len(under_way) > 2 * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _processes() -> int:
    """Return how many may encode: one for each core, as many as tokenizers may have threads; a daemon alone."""
    if multiprocessing.current_process().daemon:
        return 1
    return min(int(os.environ.get("RAYON_NUM_THREADS") or cores()), cores(), _MOST_PROCESSES)


_opened: list[Words] = []
"""What a process of the pool encodes with."""


def _open(tokenizer: str) -> None:
    """Prepare a process of the pool: it leaves an interruption to the one that started it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[_PARALLELISM] = "false"
    _opened.append(Words(_text_only(tokenizer)))


def _encode(texts: Sequence[str]) -> Encoded:
    return _opened[-1].encode(texts)


def _text_only(tokenizer: str) -> Tokenizer:
    """Return a tokenizer that reads "[MASK]" in raw text as five characters or so, and never truncates."""
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
