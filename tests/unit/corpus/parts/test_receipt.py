"""Books that balance, and say so where they do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headstart.core.errors import DataError
from headstart.corpus.parts.receipt import RowCounts


def books() -> RowCounts:
    made = RowCounts()
    read = made["read"]
    read.rows_in, read.rows_out, read.dropped = 10, 7, Counter({"rejects": 2, "read.empty": 1})
    step = made["duplicates"]
    step.rows_in, step.rows_out, step.dropped = 7, 4, Counter({"duplicates.near": 2, "duplicates.exact": 1})
    return made


def test_a_receipt_says_what_became_of_every_row() -> None:
    made = books()
    made.check()
    assert made.lines() == [
        "read: 10 rows in = 7 out + 1 dropped by rule + 0 duplicates + 2 rejects",
        "duplicates: 7 rows in = 4 out + 0 dropped by rule + 3 duplicates + 0 rejects",
    ]
    again = RowCounts.from_json(made.to_json())
    assert again.to_json() == made.to_json()
    again.add(made)
    assert again["read"].rows_in == 20 and again["read"].dropped["rejects"] == 4


def test_a_lost_row_is_found() -> None:
    made = books()
    made["read"].rows_out = 6
    with pytest.raises(DataError, match="read took in 10 rows and 9 are accounted for"):
        made.check()
    made = books()
    made["duplicates"].rows_in, made["duplicates"].rows_out = 8, 5
    with pytest.raises(DataError, match="read gave out 7 rows and step duplicates took in 8"):
        made.check()


def test_too_many_rejects_stop_the_run() -> None:
    books().require_few_rejects("read", 0.2, "a.jsonl, row 3: not JSON", Path("out"))
    with pytest.raises(DataError, match=r"2 of 10 rows.*a.jsonl, row 3: not JSON.*10.00%"):
        books().require_few_rejects("read", 0.1, "a.jsonl, row 3: not JSON", Path("out"))
