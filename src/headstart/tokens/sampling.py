"""A bounded, uniform sample of a stream of texts, on which a tokenizer is trained."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence

from headstart.core.randomness import integer

CHUNK_CHARACTERS = 10_000
MAX_WORD_CHARACTERS = 100
"""BERT's limit. A longer run without white space is not a word, and would cost the trainers quadratic time."""

_CHUNK = re.compile(rf"\S.{{0,{CHUNK_CHARACTERS - 2}}}(?!\S)|\S.{{0,{CHUNK_CHARACTERS - 1}}}", re.DOTALL)
_LONG_RUN = re.compile(rf"(\S{{{MAX_WORD_CHARACTERS}}})(?=\S)")


def sample(texts: Iterable[str], megabytes: float, seed: int) -> list[str]:
    """Return chunks of the texts, at most `megabytes` of UTF-8 in total, each equally likely, in their order.

    Algorithm: a chunk's priority is a hash of (seed, ordinal). Chunks are kept in the order of their priority, up to
    the first that no longer fits. The sample depends only on the texts and the seed, and memory is bounded.
    """
    budget, size, cutoff = int(megabytes * 1e6), 0, 1 << 63
    kept: list[tuple[int, int, str, int]] = []
    for ordinal, chunk in enumerate(chunks(texts)):
        priority = integer(seed, 0, ordinal, "tokenizer sample")
        if priority >= cutoff:
            continue
        weight = len(chunk.encode())
        heapq.heappush(kept, (-priority, ordinal, chunk, weight))
        size += weight
        while size > budget:
            cutoff = -kept[0][0]
            size -= heapq.heappop(kept)[3]
    return [_LONG_RUN.sub(r"\1 ", chunk) for _, _, chunk, _ in sorted(kept, key=lambda item: item[1])]


def sample_mixture(texts: Sequence[Iterable[str]], shares: Sequence[float], megabytes: float, seed: int) -> list[str]:
    """Return a sample of several streams in which each has its share; a stream that is too short is repeated.

    The sample has at most `megabytes`, and is so small that the stream with the most text for its share is not
    repeated.
    """
    if len(texts) == 1:
        return sample(texts[0], megabytes, seed)
    samples = [sample(stream, share * megabytes, seed) for stream, share in zip(texts, shares, strict=True)]
    sizes = [sum(len(chunk.encode()) for chunk in chunks) / 1e6 for chunks in samples]
    total = max(size / share for size, share in zip(sizes, shares, strict=True))
    out: list[str] = []
    for chunks, size, share in zip(samples, sizes, shares, strict=True):
        times, rest = divmod(total * share, size) if size else (0, 0)
        out += [*chunks * int(times), *sample(chunks, rest, seed)]
    return out


def chunks(texts: Iterable[str]) -> Iterator[str]:
    """Split texts at white space into chunks of at most 10,000 characters; only a longer word is cut inside."""
    for text in texts:
        for match in _CHUNK.finditer(text):
            yield match.group().rstrip()
