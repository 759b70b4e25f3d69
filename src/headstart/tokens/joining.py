"""Joins several folders of token shards into one, with the bytes of a single pass over all their documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import Ints
from headstart.tokens.shards import SUMMED_COUNTS, Shards, TokenFiles, entropy

_COPIED_TOKENS = 1 << 22


def join(folders: Sequence[Path], target: Path, limit_tokens: int = 1 << 28) -> dict[str, Any]:
    """Write the shards of several folders, in their order, into one folder and return the counts.

    Memory is bounded: 4 M tokens are copied at a time.
    """
    target.mkdir(parents=True, exist_ok=True)
    sources = [Shards(folder) for folder in folders]
    first, base = sources[0], 0
    unigrams: Ints = np.stack([shards.unigrams for shards in sources]).sum(axis=0, dtype=np.int64)
    with (
        TokenFiles(target, np.dtype(first.counts["dtype"]).newbyteorder("<"), limit_tokens) as out,
        (target / "documents.bin").open("wb") as documents,
        (target / "sentences.bin").open("wb") as sentences,
    ):
        for shards in sources:
            for start in range(0, shards.tokens, _COPIED_TOKENS):
                out.write(shards.read(start, min(start + _COPIED_TOKENS, shards.tokens)).astype(np.int64))
            documents.write(_shifted(shards.documents, base))
            sentences.write(_shifted(shards.sentences, base))
            base += shards.tokens
    counts = {
        **{name: sum(int(shards.counts[name]) for shards in sources) for name in SUMMED_COUNTS},
        "vocab": first.counts["vocab"],
        "dtype": first.counts["dtype"],
        "limit_tokens": limit_tokens,
        "unigram_entropy_nats": entropy(unigrams),
    }
    (target / "unigrams.bin").write_bytes(unigrams.astype("<i8").tobytes())
    (target / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return counts


def _shifted(starts: Ints, base: int) -> bytes:
    return (np.asarray(starts) + base).astype("<i8").tobytes()
