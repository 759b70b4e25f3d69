"""Lines out of bytes: any cut into ranges gives them all once, and damage costs what it damaged alone."""

from __future__ import annotations

import gzip
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.errors import DataError
from headstart.corpus.streams import chunks, lines, opened

ROWS = [f"row {number} {'x' * (number % 50)}\n".encode() for number in range(20_000)]


def unpacked(path: Path) -> tuple[bytes, list[str]]:
    found = list(chunks(str(path)))
    return b"".join(c for c in found if isinstance(c, bytes)), [c.reason for c in found if not isinstance(c, bytes)]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300).map(lambda raw: raw.replace(b"\xef", b"e")), st.lists(st.integers(0, 320), max_size=4))
def test_ranges_of_any_cut_give_each_line_once(content: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        edges = sorted({0, *(cut for cut in cuts if cut < len(content))})
        ranges = [*pairwise(edges), (edges[-1], None)]
        found = [line for start, stop in ranges for line in lines(str(path), start, stop)]
        assert b"".join(line.raw for line in found) == content
        assert [line.raw for line in found] == content.splitlines(keepends=True) or b"\r" in content or _odd(content)
        assert all(content[line.offset :].startswith(line.raw) for line in found)


def _odd(content: bytes) -> bool:
    """splitlines knows more ends of lines than the newline."""
    return any(end in content for end in (b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85"))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_lies_before_a_tear_is_read_and_the_tear_is_told(tmp_path: Path, kind: str) -> None:
    zstandard = pytest.importorskip("zstandard", reason="pip install 'headstart[corpus]'")
    whole = gzip.compress(b"".join(ROWS)) if kind == "gz" else zstandard.ZstdCompressor().compress(b"".join(ROWS))
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(whole)
    assert unpacked(path) == (b"".join(ROWS), [])
    path.write_bytes(whole[: len(whole) // 2])
    read, faults = unpacked(path)
    assert b"".join(ROWS).startswith(read) and len(read) > len(b"".join(ROWS)) // 4
    assert len(faults) == 1 and "middle of a member" in faults[0]
    found = list(lines(str(path)))
    assert [line.raw for line in found[:-1]] == ROWS[: len(found) - 1]
    assert found[-1].fault and not found[-1].raw


def test_a_damaged_member_does_not_take_the_next_ones_with_it(tmp_path: Path) -> None:
    members = [gzip.compress(b"".join(ROWS[start : start + 100])) for start in range(0, 1000, 100)]
    damaged = bytearray(members[4])
    damaged[len(damaged) // 2 : len(damaged) // 2 + 20] = b"\xff" * 20
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join([*members[:4], bytes(damaged), *members[5:]]) + bytes(64))
    found = list(lines(str(path)))
    good = [line.raw for line in found if not line.fault]
    assert set(ROWS[:400] + ROWS[500:1000]) <= set(good)
    assert sum(bool(line.fault) for line in found) >= 1


def test_a_line_too_long_is_told_with_its_size_and_never_given(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"y" * 3_000_000 + b"\nlast\n" + b"z" * 2_000_000)
    found = list(lines(str(path), longest=1_000_000))
    assert [line.raw for line in found] == [b"short\n", b"", b"last\n", b""]
    assert "3,000,001 bytes" in found[1].fault and found[1].offset == 6
    assert found[2].offset == 6 + 3_000_001


def test_an_object_store_is_read_by_its_address(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    assert [line.raw for line in lines((tmp_path / "a.txt").as_uri())] == [b"one\n", b"two\n"]
    with pytest.raises(DataError, match="there is no file"), opened(str(tmp_path / "none.txt")):
        pass
