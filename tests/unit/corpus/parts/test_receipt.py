"""Row counts balance, and raise where they do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headstart.core.errors import DataError
from headstart.corpus.parts.receipt import RowCounts


def balanced() -> RowCounts:
    counts = RowCounts()
    read = counts["read"]
    read.rows_in, read.rows_out, read.dropped = 10, 7, Counter({"rejects": 2, "read.empty": 1})
    step = counts["duplicates"]
    step.rows_in, step.rows_out, step.dropped = 7, 4, Counter({"duplicates.near": 2, "duplicates.exact": 1})
    return counts


def test_the_lines_account_for_every_row() -> None:
    counts = balanced()
    counts.check()
    assert counts.lines() == [
        "read: 10 rows in = 7 out + 1 dropped by rule + 0 duplicates + 2 rejects",
        "duplicates: 7 rows in = 4 out + 0 dropped by rule + 3 duplicates + 0 rejects",
    ]
    again = RowCounts.from_json(counts.to_json())
    assert again.to_json() == counts.to_json()
    again.add(counts)
    assert again["read"].rows_in == 20 and again["read"].dropped["rejects"] == 4


def test_a_lost_row_is_an_error() -> None:
    counts = balanced()
    counts["read"].rows_out = 6
    with pytest.raises(DataError, match="read read 10 rows, but 9 are accounted for"):
        counts.check()
    counts = balanced()
    counts["duplicates"].rows_in, counts["duplicates"].rows_out = 8, 5
    with pytest.raises(DataError, match="read kept 7 rows, but step duplicates read 8"):
        counts.check()


def test_too_many_rejects_stop_the_run() -> None:
    balanced().require_few_rejects("read", 0.2, "a.jsonl, row 3: not JSON", Path("out"))
    with pytest.raises(DataError, match=r"2 of 10 rows.*a.jsonl, row 3: not JSON.*10.00%"):
        balanced().require_few_rejects("read", 0.1, "a.jsonl, row 3: not JSON", Path("out"))
