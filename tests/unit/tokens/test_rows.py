"""Packed rows: concatenated, they are the stream of documents."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import RowShape, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.rows import PackedRows
from headstart.tokens.shards import Shards

CLS, SEP, SIZE = 2, 3, 50


def vocabulary(cls: int = CLS, sep: int = SEP) -> Vocabulary:
    flags = np.zeros(SIZE, dtype=bool)
    return Vocabulary(size=SIZE, pad=0, cls=cls, sep=sep, mask=4, special=flags, starts_word=flags)


def shards_of(lengths: list[int], folder: Path, limit: int = 1 << 20) -> tuple[Shards, list[list[int]]]:
    """Write shards without `shards.write`, so that rows are tested against the format and not against its writer."""
    numbers = iter(range(10**9))
    texts = [[5 + next(numbers) % (SIZE - 5) for _ in range(length)] for length in lengths]
    flat = np.array([token for text in texts for token in text], dtype="<u2")
    for index, start in enumerate(range(0, len(flat), limit)):
        flat[start : start + limit].tofile(folder / f"tokens-{index:05d}.bin")
    starts = (np.cumsum(lengths) - lengths).astype("<i8")
    starts.tofile(folder / "documents.bin")
    starts.tofile(folder / "sentences.bin")
    np.bincount(flat, minlength=SIZE).astype("<i8").tofile(folder / "unigrams.bin")
    counts = {
        "documents": len(lengths),
        "sentences": len(lengths),
        "tokens": len(flat),
        "vocab": SIZE,
        "dtype": "uint16",
        "limit_tokens": limit,
    }
    (folder / "counts.json").write_text(json.dumps(counts))
    return Shards(folder), texts


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    seq_length=st.integers(3, 20),
    limit=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_rows_rebuild_the_stream(lengths: list[int], seq_length: int, limit: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        shards, texts = shards_of(lengths, Path(name), limit)
        stream: list[int] = []
        starts: set[int] = set()
        for text in texts:
            stream += [SEP] if stream else []
            starts.add(len(stream))
            stream += text
        width = seq_length - 2
        if len(stream) < width:
            with pytest.raises(DataError):
                PackedRows(shards, vocabulary(), RowShape(seq_length, sentence_starts=True))
            return
        packed = PackedRows(shards, vocabulary(), RowShape(seq_length, sentence_starts=True))
        assert len(packed) == len(stream) // width
        order = np.random.default_rng(seed).permutation(len(packed)).tolist()
        rows = packed.rows([Sample(epoch, index) for epoch, index in enumerate(order)])
        assert rows.ids.shape == (len(packed), seq_length) and rows.ids.dtype == np.int64
        assert (rows.ids[:, 0] == CLS).all() and (rows.ids[:, -1] == SEP).all()
        rebuilt = rows.ids[np.argsort(order), 1:-1].ravel().tolist()
        assert rebuilt == stream[: len(packed) * width]
        for index in range(len(packed)):
            inside = [p - index * width + 1 for p in sorted(starts) if index * width <= p < (index + 1) * width]
            assert rows.sentence_starts[order.index(index)].tolist() == inside


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30), seq_length=st.integers(3, 20),
    opens=st.booleans(), closes=st.booleans(), separates=st.booleans(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_rows_of_any_frame_rebuild_the_stream(lengths, seq_length, opens, closes, separates) -> None:
    with tempfile.TemporaryDirectory() as name:
        shards, texts = shards_of(lengths, Path(name))
        stream: list[int] = []
        for text in texts:
            stream += [SEP] if stream and separates else []
            stream += text
        width = seq_length - opens - closes
        if len(stream) < width:
            return
        packed = PackedRows(shards, vocabulary(), RowShape(seq_length, opens, closes, separates))
        ids = packed.rows([Sample(0, index) for index in range(len(packed))]).ids
        assert ids.shape == (len(stream) // width, seq_length)
        assert not opens or (ids[:, 0] == CLS).all()
        assert not closes or (ids[:, -1] == SEP).all()
        assert ids[:, int(opens) : seq_length - closes].ravel().tolist() == stream[: len(packed) * width]


def test_a_corpus_shorter_than_a_row_is_refused(tmp_path: Path) -> None:
    shards, _ = shards_of([5, 4], tmp_path)
    assert len(PackedRows(shards, vocabulary(), RowShape(12))) == 1
    with pytest.raises(DataError, match=r"10 tokens, too few for one row of 13.*lower training.seq_length"):
        PackedRows(shards, vocabulary(), RowShape(13))
    with pytest.raises(ArtifactError, match=r"no \[CLS\]"):
        PackedRows(shards, vocabulary(cls=-1), RowShape(8))
    with pytest.raises(DataError, match="at least 3"):
        PackedRows(shards, vocabulary(), RowShape(2))


def test_no_rows_and_rows_out_of_range(tmp_path: Path) -> None:
    packed = PackedRows(shards_of([50, 50], tmp_path)[0], vocabulary(), RowShape(12))
    assert packed.rows([]).ids.shape == (0, 12)
    for index in (-1, len(packed)):
        with pytest.raises(IndexError):
            packed.rows([Sample(0, index)])


def test_twenty_thousand_rows_per_second(tmp_path: Path) -> None:
    packed = PackedRows(shards_of([100] * 20_000, tmp_path)[0], vocabulary(), RowShape(128))
    chosen = np.random.default_rng(0).integers(0, len(packed), (100, 64)).tolist()
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        for indices in chosen:
            packed.rows([Sample(0, index) for index in indices])
        best = max(best, 6400 / (time.process_time() - start))
    assert best > 20_000
