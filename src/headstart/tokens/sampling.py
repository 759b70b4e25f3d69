"""A bounded, uniform sample of a stream of text: what a tokenizer is trained on."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator

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


def chunks(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts at white space into pieces of at most 10,000 characters; only a longer word is cut inside."""
    for text in texts:
        for match in _CHUNK.finditer(text):
            yield match.group().rstrip()
