"""WARC and WET files: texts are read, and a record with a wrong length does not affect the records around it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headstart.corpus.read.formats import BadRow, ReadOptions
from headstart.corpus.read.warc import read_warc
from headstart.corpus.read.webpages import read_html, text_of_response

PAGE = (
    "<html><head><title>T</title></head><body><nav>menu menu</nav><article>"
    + "".join(f"<p>Paragraph {n} tells at some length what happened on that day in the old town.</p>" for n in range(8))
    + "</article></body></html>"
)


def record(kind: str, body: bytes, number: int = 0, length: int | str | None = None) -> bytes:
    stated = len(body) if length is None else length
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://example.org/{number}\r\nContent-Length: {stated}"
    return head.encode() + b"\r\n\r\n" + body + b"\r\n\r\n"


def texts(number: int) -> bytes:
    return f"This is the text of page {number}.\nIt has two lines.".encode()


def read(path: Path, max_bytes: int | None = None) -> tuple[list[str], list[str]]:
    rows = list(read_warc(str(path), ReadOptions(max_bytes=max_bytes)))
    good = [row.value for row in rows if isinstance(row.value, str)]
    return good, [row.value.reason for row in rows if isinstance(row.value, BadRow)]


@pytest.mark.parametrize("compressed", [False, True])
def test_texts_are_read_and_other_records_are_skipped(tmp_path: Path, compressed: bool) -> None:
    records = [record("warcinfo", b"about"), *(record("conversion", texts(n), n) for n in range(5))]
    records.insert(3, record("request", b"GET / HTTP/1.1"))
    path = tmp_path / ("a.wet.gz" if compressed else "a.wet")
    path.write_bytes(b"".join(gzip.compress(r) if compressed else r for r in records))
    assert read(path) == ([texts(n).decode() for n in range(5)], [])
    rows = list(read_warc(str(path), ReadOptions()))
    assert [row.extra["url"] for row in rows if row.extra] == [f"http://example.org/{n}" for n in range(5)]


@pytest.mark.parametrize("length", [3, 44, 200, 10_000_000, "many", -5, ""])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_wrong_length_rejects_its_own_record_only(tmp_path: Path, length: int | str, index: int) -> None:
    records = [record("conversion", texts(n), n, length if n == index else None) for n in range(5)]
    path = tmp_path / "a.wet"
    path.write_bytes(b"".join(records))
    good, bad = read(path)
    assert good == [texts(n).decode() for n in range(5) if n != index]
    assert len(bad) == 1


def test_junk_truncation_and_bad_bytes_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    records = [record("conversion", texts(n), n) for n in range(4)]
    path.write_bytes(b"junk before\n" + records[0] + record("conversion", b"b\xffd", 9) + records[1] + records[2][:60])
    good, bad = read(path)
    assert good == [texts(0).decode(), texts(1).decode()]
    assert len(bad) == 3 and "no record" in bad[0] and "not UTF-8" in bad[1]
    path.write_bytes(records[0] + record("conversion", b"z" * 5000, 9) + records[1])
    good, bad = read(path, max_bytes=1000)
    assert good == [texts(0).decode(), texts(1).decode()] and len(bad) == 1


def test_pages_give_their_main_text(tmp_path: Path) -> None:
    pytest.importorskip("trafilatura", reason="pip install 'headstart[corpus]'")
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=iso-8859-1\r\n\r\n" + PAGE.encode()
    chunked = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
    )
    body = gzip.compress(PAGE.encode())
    chunked += b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(record("response", response) + record("response", chunked) + record("response", b"not http"))
    good, bad = read(path)
    assert len(good) == 2 and all("Paragraph 7 tells" in text and "menu" not in text for text in good)
    assert bad == ["not an HTTP response"]
    (tmp_path / "a.html").write_text(PAGE, encoding="utf-8")
    (row,) = read_html(str(tmp_path / "a.html"), ReadOptions())
    assert row.value == good[0]


@pytest.mark.parametrize(
    ("status", "is_page"), [("200 OK", True), ("206 ", True), ("404 Not Found", False), ("500", False)]
)
def test_responses_other_than_2xx_have_no_text(tmp_path: Path, status: str, is_page: bool) -> None:
    response = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n\r\nsome words".encode()
    path = tmp_path / "a.warc"
    path.write_bytes(record("response", response) + record("response", response.replace(b"HTTP/1.1", b"HTTP/2")))
    assert read(path) == (["some words" if is_page else ""] * 2, [])
    assert isinstance(text_of_response(b"HTTP/1.1\r\n\r\nwords"), BadRow)
