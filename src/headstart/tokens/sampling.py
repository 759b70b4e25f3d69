"""A bounded, uniform sample of a stream of text: what a tokenizer is trained on."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence

from headstart.core.randomness import integer

CHUNK_CHARACTERS = 10_000
LONGEST_WORD = 100
"""BERT's limit: a longer run without white space is never a word, and would cost the trainers quadratic time."""

_CHUNK = re.compile(rf"\S.{{0,{CHUNK_CHARACTERS - 2}}}(?!\S)|\S.{{0,{CHUNK_CHARACTERS - 1}}}", re.DOTALL)
_LONG_RUN = re.compile(rf"(\S{{{LONGEST_WORD}}})(?=\S)")


def sample(texts: Iterable[str], megabytes: float, seed: int) -> list[str]:
    """Return chunks of the texts, at most `megabytes` of UTF-8 in all, each equally likely, in their order.

    A chunk's priority is a hash of (seed, ordinal). The chunks of lowest priority are kept until the first
    that no longer fits, so the sample depends on nothing but the texts and the seed, and memory is bounded.
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


def mixed(texts: Sequence[Iterable[str]], shares: Sequence[float], megabytes: float, seed: int) -> list[str]:
    """Return a sample of several streams in which each has its share; one that is too short for it is repeated.

    All together are at most `megabytes`, and so few that the stream with the most text for its share is not repeated.
    """
    if len(texts) == 1:
        return sample(texts[0], megabytes, seed)
    found = [sample(stream, share * megabytes, seed) for stream, share in zip(texts, shares, strict=True)]
    sizes = [sum(len(chunk.encode()) for chunk in chunks) / 1e6 for chunks in found]
    whole = max(size / share for size, share in zip(sizes, shares, strict=True))
    out: list[str] = []
    for chunks, size, share in zip(found, sizes, shares, strict=True):
        times, rest = divmod(whole * share, size) if size else (0, 0)
        out += [*chunks * int(times), *sample(chunks, rest, seed)]
    return out


def chunks(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts at white space into pieces of at most 10,000 characters; only a longer word is cut inside."""
    for text in texts:
        for match in _CHUNK.finditer(text):
            yield match.group().rstrip()
