"""Rows of two segments of one document: their boundary, their tokens, and their negatives."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import RowShape, Sample, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.rows import cut
from headstart.tokens.segments import SegmentRows
from headstart.tokens.shards import Shards

PAD, CLS, SEP, SIZE = 0, 2, 3, 60_000


def vocabulary(pad: int = PAD) -> Vocabulary:
    special = np.arange(SIZE) < 5
    return Vocabulary(size=SIZE, pad=pad, cls=CLS, sep=SEP, mask=4, special=special, starts_word=~special)


def shards_of(documents: list[list[int]], folder: Path, limit: int = 1 << 28) -> Shards:
    """Documents given by the lengths of their sentences; the token at position i is 5 + i, so each is unique."""
    lengths = np.array([length for document in documents for length in document])
    flat = (5 + np.arange(lengths.sum()) % (SIZE - 5)).astype("<u2")
    for index, start in enumerate(range(0, len(flat), limit)):
        flat[start : start + limit].tofile(folder / f"tokens-{index:05d}.bin")
    sums = np.array([sum(document) for document in documents])
    (np.cumsum(sums) - sums).astype("<i8").tofile(folder / "documents.bin")
    (np.cumsum(lengths) - lengths).astype("<i8").tofile(folder / "sentences.bin")
    np.zeros(SIZE, dtype="<i8").tofile(folder / "unigrams.bin")
    counts = {
        "documents": len(documents), "sentences": len(lengths), "tokens": len(flat), "vocab": SIZE, "dtype": "uint16",
        "limit_tokens": limit,
    }  # fmt: skip
    (folder / "counts.json").write_text(json.dumps(counts))
    return Shards(folder)


def parts(row: np.ndarray, second: int) -> tuple[list[int], list[int]]:
    """The positions in the stream of A's and of B's tokens; fails unless the special tokens are in place."""
    assert row[0] == CLS and row[second - 1] == SEP
    ends = np.flatnonzero(row == SEP)
    assert len(ends) == 2 and (row[ends[1] + 1 :] == PAD).all()
    return (row[1 : second - 1] - 5).tolist(), (row[second : ends[1]] - 5).tolist()


documents = st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=8), min_size=1, max_size=15)


@given(
    documents=documents,
    length=st.integers(5, 40),
    whole=st.booleans(),
    limit=st.integers(5, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_rows_are_two_stretches_of_one_document_split_at_a_sentence(documents, length, whole, limit, seed):
    room = length - 3
    sums = [sum(document) for document in documents]
    starts = np.cumsum(sums) - sums
    sentences = np.cumsum([n for document in documents for n in document]) - [n for d in documents for n in d]
    count = sum(-(-size // room) for size, document in zip(sums, documents, strict=True) if len(document) > 1)
    shape = RowShape(length, segments=True, whole_sentences=whole)
    with tempfile.TemporaryDirectory() as name:
        shards = shards_of(documents, Path(name), limit)
        if not count:
            with pytest.raises(DataError, match="two sentences"):
                SegmentRows(shards, vocabulary(), shape)
            return
        segments = cut(shards, vocabulary(), shape)
        assert isinstance(segments, SegmentRows) and len(segments) == count
        order = np.random.default_rng(seed).permutation(count)
        rows = segments.rows([Sample(index, int(index)) for index in order])
        for i, index in enumerate(order):
            alone = segments.rows([Sample(7, int(index))])
            for left, right in (
                (alone.ids, rows.ids),
                (alone.second_start, rows.second_start),
                (alone.negative_ids, rows.negative_ids),
            ):
                assert np.array_equal(left[0], right[i]), "neither order, grouping nor epoch matters"
    assert rows.ids.shape == rows.negative_ids.shape == (count, length)
    rows_of = np.zeros(len(documents), dtype=int)
    for i in range(count):
        first, second = parts(rows.ids[i], rows.second_start[i])
        document = int(np.searchsorted(starts, second[0], side="right")) - 1
        begin, end = starts[document], starts[document] + sums[document]
        rows_of[document] += 1
        together = first + second
        assert first and second
        assert together == list(range(together[0], together[-1] + 1)), "one stretch"
        assert begin <= together[0] and together[-1] < end, "of one document"
        assert second[0] in sentences and second[0] != begin, "split where a sentence starts"
        if not whole:
            assert len(together) == min(room, sums[document])
        negative = rows.negative_ids[i][rows.negative_ids[i] != PAD] - 5
        if len(documents) == 1:
            assert not len(negative)
            continue
        other = int(np.searchsorted(starts, negative[0], side="right")) - 1
        last = starts[other] + sums[other]
        assert other != document
        assert negative[0] in sentences
        assert (negative[0] != starts[other]) == (len(documents[other]) > 1)
        assert negative.tolist() == list(range(negative[0], min(negative[0] + length, last)))
    expected = [-(-size // room) if len(document) > 1 else 0 for size, document in zip(sums, documents, strict=True)]
    assert rows_of.tolist() == expected


def rows_over(documents: list[list[int]], length: int, tmp_path: Path, whole: bool = False) -> tuple:
    segments = SegmentRows(
        shards_of(documents, tmp_path), vocabulary(), RowShape(length, segments=True, whole_sentences=whole)
    )
    return segments, segments.rows([Sample(0, index) for index in range(len(segments))])


def synthetic_documents(count: int, seed: int = 0) -> list[list[int]]:
    """Sentences of 20 tokens or so, documents of 2 to 40 of them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(8, 35, size=rng.integers(2, 40)).tolist() for _ in range(count)]


def test_whole_sentences_do_not_reveal_the_order(tmp_path):
    """Cut segments start inside a sentence, which tells A from B; with whole sentences only the content does."""
    documents = synthetic_documents(60)
    sentences = set((np.cumsum([n for d in documents for n in d]) - [n for d in documents for n in d]).tolist())
    ends = {start - 1 for start in sentences} | {sum(map(sum, documents)) - 1}
    signs, filled = {}, {}
    for whole in (False, True):
        folder = tmp_path / str(whole)
        folder.mkdir()
        _, rows = rows_over(documents, 128, folder, whole)
        cuts = 0
        for ids, second in zip(rows.ids, rows.second_start, strict=True):
            before, after = parts(ids, second)
            cuts += before[0] not in sentences or after[-1] not in ends
        signs[whole], filled[whole] = cuts / len(rows.ids), float((rows.ids != PAD).mean())
    assert signs[False] > 0.8
    assert signs[True] == 0
    assert filled[False] > 0.97
    assert filled[True] > 0.8


def test_the_two_segments_share_the_row(tmp_path):
    _, rows = rows_over(synthetic_documents(200), 128, tmp_path)
    full = (rows.ids[:, -1] == SEP) & (rows.second_start > 2)
    share = (rows.second_start[full] - 2) / 125
    assert 0.45 < share.mean() < 0.55
    assert share.std() > 0.1
    assert ((share > 0.1) & (share < 0.9)).mean() > 0.95


def test_negatives_are_as_long_as_the_second_segment_and_come_from_all_documents(tmp_path):
    documents = synthetic_documents(110)
    assert sum(map(sum, documents)) < SIZE - 5
    _, rows = rows_over(documents, 128, tmp_path)
    lengths = (rows.negative_ids != PAD).sum(1)
    second = np.array([len(parts(ids, start)[1]) for ids, start in zip(rows.ids, rows.second_start, strict=True)])
    assert (lengths >= second).mean() > 0.99
    sums = np.cumsum([sum(document) for document in documents])
    owners = np.searchsorted(sums, rows.negative_ids[:, 0] - 5, side="right")
    assert len(np.unique(owners)) > 95


def test_impossible_rows_are_refused(tmp_path):
    shards = shards_of([[3, 4], [5]], tmp_path)
    with pytest.raises(DataError, match="seq_length is 4"):
        SegmentRows(shards, vocabulary(), RowShape(4, segments=True))
    with pytest.raises(ArtifactError, match="PAD"):
        SegmentRows(shards, vocabulary(pad=-1), RowShape(16, segments=True))
    rows = SegmentRows(shards, vocabulary(), RowShape(16, segments=True))
    with pytest.raises(IndexError, match="0 to 0"):
        rows.rows([Sample(0, 1)])


def test_a_million_documents_take_seconds_and_eight_bytes_each(tmp_path):
    count = 1_000_000
    lengths = np.tile([7, 9, 5], count)
    flat = np.zeros(int(lengths.sum()), dtype="<u2")
    flat.tofile(tmp_path / "tokens-00000.bin")
    (np.arange(count, dtype="<i8") * 21).tofile(tmp_path / "documents.bin")
    (np.cumsum(lengths) - lengths).astype("<i8").tofile(tmp_path / "sentences.bin")
    np.zeros(SIZE, dtype="<i8").tofile(tmp_path / "unigrams.bin")
    counts = {
        "documents": count, "sentences": 3 * count, "tokens": len(flat), "vocab": SIZE, "dtype": "uint16",
        "limit_tokens": 1 << 28,
    }  # fmt: skip
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    shards = Shards(tmp_path)
    tracemalloc.start()
    begin = time.process_time()
    segments = SegmentRows(shards, vocabulary(), RowShape(16, segments=True))
    seconds = time.process_time() - begin
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(segments) == 2 * count
    assert held < 9 * count
    assert seconds < 5
    begin = time.process_time()
    segments.rows([Sample(0, index) for index in range(0, 2 * count, 20_000)])
    assert time.process_time() - begin < 0.5
