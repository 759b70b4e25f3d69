"""Crawls: pages and texts come out, records whose lengths lie do not take their neighbours with them."""

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


def read(path: Path, longest: int | None = None) -> tuple[list[str], list[str]]:
    rows = list(read_warc(str(path), ReadOptions(longest=longest)))
    good = [row.value for row in rows if isinstance(row.value, str)]
    return good, [row.value.reason for row in rows if isinstance(row.value, BadRow)]


@pytest.mark.parametrize("packed", [False, True])
def test_texts_come_out_and_other_records_are_no_rows(tmp_path: Path, packed: bool) -> None:
    records = [record("warcinfo", b"about"), *(record("conversion", texts(n), n) for n in range(5))]
    records.insert(3, record("request", b"GET / HTTP/1.1"))
    path = tmp_path / ("a.wet.gz" if packed else "a.wet")
    path.write_bytes(b"".join(gzip.compress(r) if packed else r for r in records))
    assert read(path) == ([texts(n).decode() for n in range(5)], [])
    rows = list(read_warc(str(path), ReadOptions()))
    assert [row.kept["url"] for row in rows if row.kept] == [f"http://example.org/{n}" for n in range(5)]


@pytest.mark.parametrize("length", [3, 44, 200, 10_000_000, "many", -5, ""])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_lying_length_costs_its_own_record_alone(tmp_path: Path, length: int | str, place: int) -> None:
    records = [record("conversion", texts(n), n, length if n == place else None) for n in range(5)]
    path = tmp_path / "a.wet"
    path.write_bytes(b"".join(records))
    good, bad = read(path)
    assert good == [texts(n).decode() for n in range(5) if n != place]
    assert len(bad) == 1


def test_junk_tears_and_bad_bytes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    records = [record("conversion", texts(n), n) for n in range(4)]
    path.write_bytes(b"junk before\n" + records[0] + record("conversion", b"b\xffd", 9) + records[1] + records[2][:60])
    good, bad = read(path)
    assert good == [texts(0).decode(), texts(1).decode()]
    assert len(bad) == 3 and "no record" in bad[0] and "not UTF-8" in bad[1]
    path.write_bytes(records[0] + record("conversion", b"z" * 5000, 9) + records[1])
    good, bad = read(path, longest=1000)
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


def test_a_page_is_decoded_as_it_says_or_rejected() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\n"
    assert text_of_response(head + "Grüße".encode("latin-1")) == "Grüße"
    wrong = text_of_response(head.replace(b"iso-8859-1", b"utf-8") + "Grüße".encode("latin-1"))
    assert isinstance(wrong, BadRow) and "neither UTF-8" in wrong.reason


@pytest.mark.parametrize("charset", [b"undefined", b"idna", b"hex", b"unicode_escape", b"no-such-thing"])
def test_a_charset_that_decodes_nothing_costs_its_own_page_alone(charset: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=" + charset + b"\r\n\r\n"
    wrong = text_of_response(head + b"\xff \\ud800")
    assert isinstance(wrong, BadRow) and "neither UTF-8" in wrong.reason


@pytest.mark.parametrize("packing", [b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"])
def test_a_body_that_is_cut_is_no_text(packing: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + packing + b"\r\n\r\n"
    text = b"".join(b"word %d. " % number for number in range(5000))
    body = gzip.compress(text[:9000]) + gzip.compress(text[9000:])
    if b"chunked" in packing:
        body = b"%x\r\n%s\r\n" % (9000, text[:9000]) + b"%X ;x=1\r\n%s\r\n0\r\n\r\n" % (len(text) - 9000, text[9000:])
    assert text_of_response(head + body) == text.decode()
    for end in (len(body) // 4, len(body) // 2, len(body) - 8):
        cut = text_of_response(head + body[:end])
        assert isinstance(cut, BadRow) and "it ends too soon" in cut.reason
    assert text_of_response(head) == "" and text_of_response(head + body, len(text)) == text.decode()


def test_a_body_that_becomes_too_long_is_not_unpacked_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n"
    bomb = text_of_response(head + gzip.compress(b"x" * 5_000_000), longest=1_000_000)
    assert isinstance(bomb, BadRow) and "more than 1,000,000 bytes, which reading.longest_mb allows" in bomb.reason


@pytest.mark.parametrize(
    ("status", "is_page"), [("200 OK", True), ("206 ", True), ("404 Not Found", False), ("500", False)]
)
def test_pages_that_say_they_are_none_have_no_text(tmp_path: Path, status: str, is_page: bool) -> None:
    response = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n\r\nsome words".encode()
    path = tmp_path / "a.warc"
    path.write_bytes(record("response", response) + record("response", response.replace(b"HTTP/1.1", b"HTTP/2")))
    assert read(path) == (["some words" if is_page else ""] * 2, [])
    assert isinstance(text_of_response(b"HTTP/1.1\r\n\r\nwords"), BadRow)
