"""Rows of one sentence each: their tokens, their padding, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.tokens.test_segments import CLS, PAD, SEP, shards_of, vocabulary

from headstart.core.data import RowShape, Sample
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.rows import cut


def test_a_row_is_one_sentence_and_padding(tmp_path):
    shards = shards_of([[3, 4], [1], [9, 2]], tmp_path)
    rows = cut(shards, vocabulary(), RowShape(8, one_sentence=True))
    assert len(rows) == 5
    ids = rows.rows([Sample(0, index) for index in range(5)]).ids
    assert ids.tolist() == [
        [CLS, 5, 6, 7, SEP, PAD, PAD, PAD],
        [CLS, 8, 9, 10, 11, SEP, PAD, PAD],
        [CLS, 12, SEP, PAD, PAD, PAD, PAD, PAD],
        [CLS, 13, 14, 15, 16, 17, 18, SEP],  # nine tokens, of which six fit
        [CLS, 22, 23, SEP, PAD, PAD, PAD, PAD],
    ]
    assert np.array_equal(rows.rows([Sample(7, 3), Sample(0, 0)]).ids, ids[[3, 0]])


def test_impossible_rows_are_refused(tmp_path):
    shards = shards_of([[3, 4]], tmp_path)
    with pytest.raises(DataError, match="seq_length is 2"):
        cut(shards, vocabulary(), RowShape(2, one_sentence=True))
    with pytest.raises(ArtifactError, match="PAD"):
        cut(shards, vocabulary(pad=-1), RowShape(16, one_sentence=True))
    with pytest.raises(ArtifactError, match=r"no \[PAD\] that differs"):
        cut(shards, vocabulary(pad=SEP), RowShape(16, one_sentence=True))
    with pytest.raises(IndexError, match="0 to 1"):
        cut(shards, vocabulary(), RowShape(16, one_sentence=True)).rows([Sample(0, 2)])
