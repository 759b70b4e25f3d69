"""Raw files with planted faults of every kind, and the expected result for each row."""

from __future__ import annotations

import gzip
import io
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass
class Planted:
    """The texts of the good rows, and the files and positions of the faults."""

    good: set[str] = field(default_factory=set)
    faults: set[tuple[str, str]] = field(default_factory=set)
    """(file, "offset N" or a position such as "row 7")."""
    empty: int = 0
    number: int = 0

    def row(self) -> str:
        """Return a new good text."""
        self.number += 1
        text = f"Good row {self.number}: the quick fox, “so they say”, jumps over {self.number * 7919 % 1000} dogs."
        self.good.add(text)
        return text


def plant(folder: Path, faults: int, seed: int, max_bytes: int) -> Planted:
    """Write files with the given number of faults among three times as many good rows."""
    rng, planted = random.Random(seed), Planted()
    _jsonl(folder / "a.jsonl", planted, rng, faults * 50 // 100, max_bytes)
    _csv(folder / "b.csv", planted, rng, faults * 15 // 100)
    _text(folder / "c.txt", planted, rng, faults * 5 // 100)
    _parquet(folder / "d.parquet", planted, rng, faults * 15 // 100)
    _warc(folder / "e.wet", planted, rng, faults * 10 // 100)
    remaining = faults - len(planted.faults)
    for number in range(remaining):
        _corrupt_file(folder, number, planted, rng)
    return planted


def _jsonl(path: Path, planted: Planted, rng: random.Random, faults: int, max_bytes: int) -> None:
    bad: list[Callable[[], bytes]] = [
        lambda: b'{"text": "b' + bytes([rng.choice([0x80, 0xC3, 0xFF])]) + b' d"}',
        lambda: json.dumps({"text": "torn in the middle of it"}).encode()[: rng.randrange(3, 20)],
        lambda: b'{"text": %d}' % rng.randrange(99),
        lambda: b'{"text": ["a", "b"]}',
        lambda: b'["text", "x"]',
        lambda: b'{"txet": "misspelt"}',
        lambda: b'{"text": "\\ud800"}',
        lambda: b"[" * 5000,
        lambda: b"plain words",
        lambda: b'{"text": "a"} {"text": "b"}',
        lambda: b'{"text": "' + b"x" * (max_bytes + rng.randrange(1000)) + b'"}' if rng.random() < 0.1 else b"{]",
        lambda: b"\x00\x00\x00",
    ]
    out = io.BytesIO()
    kinds = [True] * faults + [False] * (3 * faults)
    rng.shuffle(kinds)
    for is_bad in [False, *kinds]:
        if is_bad:
            planted.faults.add((path.name, f"offset {out.tell()}"))
            out.write(rng.choice(bad)() + b"\n")
        elif rng.random() < 0.02:
            planted.empty += 1
            out.write(rng.choice([b"\n", b'{"text": ""}\n', b'{"text": null}\n', b'{"text": "  "}\n']))
        else:
            out.write(json.dumps({"text": planted.row(), "n": 1}, ensure_ascii=rng.random() < 0.5).encode() + b"\n")
    path.write_bytes(out.getvalue())


def _csv(path: Path, planted: Planted, rng: random.Random, faults: int) -> None:
    out = io.BytesIO()
    out.write(b"id,text\n")
    bad = [b"1,2,3,4", b"alone", b"7,b\xffd", b'8,"x"y', b'9,"open and never closed']
    kinds = [True] * faults + [False] * (3 * faults)
    rng.shuffle(kinds)
    for is_bad in kinds:
        if is_bad:
            planted.faults.add((path.name, f"offset {out.tell()}"))
            out.write(rng.choice(bad) + b"\n")
        else:
            out.write(f'{planted.number},"{planted.row()}"\n'.encode())
    path.write_bytes(out.getvalue())


def _text(path: Path, planted: Planted, rng: random.Random, faults: int) -> None:
    out = io.BytesIO()
    for number in range(3 * faults):
        text = planted.row()
        out.write(text.encode() + b"\n")
        if number < faults:
            planted.faults.add((path.name, f"offset {out.tell()}"))
            out.write(b"a line with \xfe\xff bytes\n")
        out.write(b"\n" * rng.randrange(1, 4))
    path.write_bytes(out.getvalue())


def _parquet(path: Path, planted: Planted, rng: random.Random, faults: int) -> None:
    kinds = [True] * faults + [False] * (3 * faults)
    rng.shuffle(kinds)
    rows: list[bytes] = []
    for number, is_bad in enumerate(kinds):
        if is_bad:
            planted.faults.add((path.name, f"row {number}"))
        rows.append(b"b\xff\xfed" if is_bad else planted.row().encode())
    raw = pa.array(rows, pa.binary())
    pq.write_table(
        pa.table({"text": pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())}), path, row_group_size=97
    )


def _record(text: bytes, length: int | str | None = None) -> bytes:
    stated = len(text) if length is None else length
    head = (
        f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://example.org/\r\nContent-Length: {stated}\r\n\r\n"
    )
    return head.encode() + text + b"\r\n\r\n"


def _warc(path: Path, planted: Planted, rng: random.Random, faults: int) -> None:
    out = io.BytesIO()
    out.write(b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 4\r\n\r\ninfo\r\n\r\n")
    kinds = [True] * faults + [False] * (3 * faults)
    rng.shuffle(kinds)
    for is_bad in [*kinds, False]:
        if not is_bad:
            out.write(_record(planted.row().encode()))
            continue
        planted.faults.add((path.name, f"offset {out.tell()}"))
        body = b"A record whose stated length is wrong, in this test."
        wrong = [len(body) - 7, len(body) + 3, len(body) + 150, 10**8, 10**15, -1, "", "twelve"]
        out.write(rng.choice([_record(body, rng.choice(wrong)), _record(b"b\xffd")]))
    path.write_bytes(out.getvalue())


def _corrupt_file(folder: Path, number: int, planted: Planted, rng: random.Random) -> None:
    """Write one file that is truncated, or corrupt in one part."""
    kind = ("gz", "parquet", "group", "html")[number % 4]
    if kind == "gz":
        rows = [json.dumps({"text": planted.row()}).encode() + b"\n" for _ in range(40)]
        compressed = gzip.compress(b"".join(rows))[: -rng.randrange(9, 400)]
        (folder / f"t{number}.jsonl.gz").write_bytes(compressed)
        read = zlib.decompressobj(wbits=31).decompress(compressed)
        whole = read[: read.rfind(b"\n") + 1]
        planted.good -= {json.loads(row)["text"] for row in b"".join(rows)[len(whole) :].splitlines()}
        planted.faults.add((f"t{number}.jsonl.gz", f"offset {len(whole)}"))
    elif kind == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.table({"text": ["lost with its file"] * 20}), buffer)
        (folder / f"t{number}.parquet").write_bytes(buffer.getvalue()[: -rng.randrange(1, 200)])
        planted.faults.add((f"t{number}.parquet", "file"))
    elif kind == "group":
        buffer = io.BytesIO()
        lost = [f"lost {n} {rng.random()}" for n in range(10)]
        pq.write_table(
            pa.table({"text": [*(planted.row() for _ in range(10)), *lost, *(planted.row() for _ in range(10))]}),
            buffer, row_group_size=10, compression="zstd", use_dictionary=False,
        )  # fmt: skip
        raw = bytearray(buffer.getvalue())
        column = pq.ParquetFile(io.BytesIO(raw)).metadata.row_group(1).column(0)
        raw[column.data_page_offset : column.data_page_offset + 30] = b"\xff" * 30
        (folder / f"t{number}.parquet").write_bytes(raw)
        planted.faults.add((f"t{number}.parquet", "row 10"))
    else:
        (folder / f"t{number}.html").write_bytes(b"<html><body><p>neither \xfe\xff nor declared</p></body></html>")
        planted.faults.add((f"t{number}.html", "document 0"))
