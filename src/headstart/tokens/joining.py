"""Several folders of token shards as one: the bytes that would have been written had their documents come in a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import Ints
from headstart.tokens.shards import COUNTED, Shards, TokenFiles, entropy

_TOKENS_AT_ONCE = 1 << 22


def join(folders: Sequence[Path], target: Path, limit_tokens: int = 1 << 28) -> dict[str, Any]:
    """Write the shards of some folders, in their order, into one folder, in bounded memory; return the counts."""
    target.mkdir(parents=True, exist_ok=True)
    opened = [Shards(folder) for folder in folders]
    first, base = opened[0], 0
    unigrams: Ints = np.stack([shards.unigrams for shards in opened]).sum(axis=0, dtype=np.int64)
    with (
        TokenFiles(target, np.dtype(first.counts["dtype"]).newbyteorder("<"), limit_tokens) as out,
        (target / "documents.bin").open("wb") as documents,
        (target / "sentences.bin").open("wb") as sentences,
    ):
        for shards in opened:
            for start in range(0, shards.tokens, _TOKENS_AT_ONCE):
                out.write(shards.read(start, min(start + _TOKENS_AT_ONCE, shards.tokens)).astype(np.int64))
            documents.write(_shifted(shards.documents, base))
            sentences.write(_shifted(shards.sentences, base))
            base += shards.tokens
    counts = {
        **{name: sum(int(shards.counts[name]) for shards in opened) for name in COUNTED},
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
