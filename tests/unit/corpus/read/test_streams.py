"""Lines from bytes: any split into ranges yields each line once, and damage affects only the damaged bytes."""

from __future__ import annotations

import gzip
import random
import tempfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.errors import DataError
from headstart.corpus.read import streams
from headstart.corpus.read.streams import chunks, lines, opened

ROWS = [f"row {number} {'x' * (number % 50)}\n".encode() for number in range(20_000)]


def decompressed(path: Path) -> tuple[bytes, list[str]]:
    parts = list(chunks(str(path)))
    return b"".join(c for c in parts if isinstance(c, bytes)), [c.reason for c in parts if not isinstance(c, bytes)]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300).map(lambda raw: raw.replace(b"\xef", b"e")), st.lists(st.integers(0, 320), max_size=4))
def test_any_split_into_ranges_yields_each_line_once(content: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        edges = sorted({0, *(cut for cut in cuts if cut < len(content))})
        ranges = [*pairwise(edges), (edges[-1], None)]
        result = [line for start, stop in ranges for line in lines(str(path), start, stop)]
        raw = [line.raw for line in result]
        assert b"".join(raw) == content
        assert raw == content.splitlines(keepends=True) or b"\r" in content or _has_other_line_ends(content)
        assert all(content[line.offset :].startswith(line.raw) for line in result)


def _has_other_line_ends(content: bytes) -> bool:
    """Return True if `splitlines` splits at other bytes than the newline."""
    return any(end in content for end in (b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85"))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_truncated_file_is_read_up_to_its_end_and_reported(tmp_path: Path, kind: str) -> None:
    zstandard = pytest.importorskip("zstandard", reason="pip install 'headstart[corpus]'")
    whole = gzip.compress(b"".join(ROWS)) if kind == "gz" else zstandard.ZstdCompressor().compress(b"".join(ROWS))
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(whole)
    assert decompressed(path) == (b"".join(ROWS), [])
    path.write_bytes(whole[: len(whole) // 2])
    read, faults = decompressed(path)
    assert b"".join(ROWS).startswith(read) and len(read) > len(b"".join(ROWS)) // 4
    assert len(faults) == 1 and "middle of a member" in faults[0]
    result = list(lines(str(path)))
    assert [line.raw for line in result[:-1]] == ROWS[: len(result) - 1]
    assert result[-1].fault and not result[-1].raw


def test_members_after_a_damaged_one_are_read(tmp_path: Path) -> None:
    members = [gzip.compress(b"".join(ROWS[start : start + 100])) for start in range(0, 1000, 100)]
    damaged = bytearray(members[4])
    damaged[len(damaged) // 2 : len(damaged) // 2 + 20] = b"\xff" * 20
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join([*members[:4], bytes(damaged), *members[5:]]) + bytes(64))
    result = list(lines(str(path)))
    good = [line.raw for line in result if not line.fault]
    assert set(ROWS[:400] + ROWS[500:1000]) <= set(good)
    assert sum(bool(line.fault) for line in result) >= 1


def test_a_line_that_is_too_long_is_a_fault_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"y" * 3_000_000 + b"\nlast\n" + b"z" * 2_000_000)
    result = list(lines(str(path), max_bytes=1_000_000))
    assert [line.raw for line in result] == [b"short\n", b"", b"last\n", b""]
    assert "3,000,001 bytes" in result[1].fault and result[1].offset == 6
    assert result[2].offset == 6 + 3_000_001


def test_a_file_url_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    assert [line.raw for line in lines((tmp_path / "a.txt").as_uri())] == [b"one\n", b"two\n"]
    with pytest.raises(DataError, match="there is no file"), opened(str(tmp_path / "none.txt")):
        pass


def test_the_largest_window_of_zstd_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="pip install 'headstart[corpus]'")
    settings = {"window_log": 30, "enable_ldm": True, "write_content_size": False}
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, **settings)
    ).compressobj()
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packer.compress(b"".join(ROWS)) + packer.flush())
    assert decompressed(path) == (b"".join(ROWS), [])


@pytest.mark.parametrize("before", [1 << 18, (1 << 18) - 1, (1 << 18) - 2, (1 << 18) - 3, 3_000_000])
def test_junk_is_one_fault_and_the_member_after_it_is_found_at_any_offset(tmp_path: Path, before: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    # Magic bytes inside the junk that start no member do not make it several faults.
    junk = (b"\x01" * 1000 + b"\x1f\x8b\x08\xff") * (before // 1004) + b"\x01" * (before % 1004)
    path.write_bytes(gzip.compress(b"first\n") + junk[24:] + gzip.compress(b"".join(ROWS)) + bytes(100))
    read, faults = decompressed(path)
    assert read == b"first\n" + b"".join(ROWS) and len(faults) == 1
    path.write_bytes(junk + gzip.compress(b"".join(ROWS)))
    read, faults = decompressed(path)
    assert read == b"".join(ROWS) and len(faults) == 1


@pytest.mark.parametrize("cut", range(-4, 3))
def test_a_member_after_a_damaged_one_is_found_at_a_chunk_boundary(tmp_path: Path, cut: int) -> None:
    # Stored blocks that end with the chunk: the damage is detected in the first bytes of the next member.
    packer = zlib.compressobj(0, wbits=31)
    stored = packer.compress(random.Random(0).randbytes((1 << 18) - 200)) + packer.flush(zlib.Z_SYNC_FLUSH)
    while len(stored) < (1 << 18) + cut:
        stored += b"\x00\x00\x00\xff\xff"[: (1 << 18) + cut - len(stored)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(stored[: (1 << 18) + cut] + gzip.compress(b"".join(ROWS)))
    read, faults = decompressed(path)
    assert read.endswith(b"".join(ROWS)) and faults


def test_zeros_between_members_are_not_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"one\n") + bytes(500_000) + gzip.compress(b"two\n") + bytes(64))
    assert decompressed(path) == (b"one\ntwo\n", [])


def test_a_range_inside_one_long_line_reads_no_further_than_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + b"y\n")
    read: list[int] = []
    real_chunks = streams._chunks_of

    def counted(*arguments: Any) -> Iterator[bytes | streams.Fault]:
        for chunk in real_chunks(*arguments):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(streams, "_chunks_of", counted)
    assert list(streams.lines(str(path), 1000, 2000)) == [] and len(read) == 1
    ranges = [(start, start + 500_000) for start in range(0, 5_000_003, 500_000)]
    result = [line for limits in ranges for line in streams.lines(str(path), *limits)]
    assert [(line.offset, len(line.raw)) for line in result] == [(0, 5_000_001), (5_000_001, 2)]


@pytest.mark.parametrize("content", [b"", b"\0" * 600])
def test_a_compressed_file_without_a_member_is_corrupt(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    (line,) = lines(str(tmp_path / "a.jsonl.gz"))
    assert line.fault == "corrupt gzip data (the file is empty)" and line.offset == 0
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
    assert list(lines(str(tmp_path / "b.jsonl.gz"))) == []
