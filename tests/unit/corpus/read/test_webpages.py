"""The text of a web page: charsets, transfer and content encodings."""

from __future__ import annotations

import gzip
import zlib

import pytest

from headstart.corpus.read.formats import BadRow
from headstart.corpus.read.webpages import text_of_response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
TEXT = b"".join(b"word %d. " % number for number in range(5000))


def test_a_page_is_decoded_with_its_charset_or_rejected() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\n"
    assert text_of_response(head + "Grüße".encode("latin-1")) == "Grüße"
    wrong = text_of_response(head.replace(b"iso-8859-1", b"utf-8") + "Grüße".encode("latin-1"))
    assert isinstance(wrong, BadRow) and "neither UTF-8" in wrong.reason


@pytest.mark.parametrize("charset", [b"undefined", b"idna", b"hex", b"unicode_escape", b"no-such-thing"])
def test_a_charset_that_cannot_decode_rejects_the_page(charset: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=" + charset + b"\r\n\r\n"
    wrong = text_of_response(head + b"\xff \\ud800")
    assert isinstance(wrong, BadRow) and "neither UTF-8" in wrong.reason


@pytest.mark.parametrize("encoding", [b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"])
def test_a_truncated_body_is_rejected(encoding: bytes) -> None:
    head, text = HEAD + encoding + b"\r\n\r\n", TEXT
    body = gzip.compress(text[:9000]) + gzip.compress(text[9000:])
    if b"chunked" in encoding:
        body = b"%x\r\n%s\r\n" % (9000, text[:9000]) + b"%X ;x=1\r\n%s\r\n0\r\n\r\n" % (len(text) - 9000, text[9000:])
    assert text_of_response(head + body) == text.decode()
    for end in (len(body) // 4, len(body) // 2, len(body) - 8):
        cut = text_of_response(head + body[:end])
        assert isinstance(cut, BadRow) and "it ends too early" in cut.reason
    assert text_of_response(head) == "" and text_of_response(head + body, len(text)) == text.decode()


def test_a_body_that_becomes_too_large_is_rejected() -> None:
    head = HEAD + b"Content-Encoding: gzip\r\n\r\n"
    bomb = text_of_response(head + gzip.compress(b"x" * 5_000_000), max_bytes=1_000_000)
    assert isinstance(bomb, BadRow) and "more than 1,000,000 bytes, which reading.longest_mb allows" in bomb.reason


def test_zstd_and_several_encodings_are_decoded() -> None:
    zstandard = pytest.importorskip("zstandard", reason="pip install 'headstart[corpus]'")
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT[9000:])
    body = zstandard.compress(TEXT[:9000]) + streamed
    head = HEAD + b"Content-Encoding: zstd\r\n\r\n"
    assert text_of_response(head + body) == TEXT.decode()
    for end in (2, len(body) // 4, len(body) - 8):
        truncated = text_of_response(head + body[:end])
        assert isinstance(truncated, BadRow) and "the body cannot be decoded (it ends too early)" in truncated.reason
    corrupt = text_of_response(head + b"no zstd data")
    assert isinstance(corrupt, BadRow) and "the body cannot be decoded" in corrupt.reason
    large = text_of_response(head + zstandard.compress(b"x" * 5_000_000), max_bytes=1_000_000)
    assert isinstance(large, BadRow) and "more than 1,000,000 bytes" in large.reason
    twice = HEAD + b"Content-Encoding: zstd, gzip\r\n\r\n" + gzip.compress(body)
    assert text_of_response(twice) == TEXT.decode()
    assert text_of_response(HEAD + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(TEXT)) == TEXT.decode()
    assert text_of_response(HEAD + b"Content-Encoding: identity\r\n\r\n" + TEXT) == TEXT.decode()


@pytest.mark.parametrize("encoding", ["br", "compress"])
def test_an_unsupported_content_encoding_is_rejected_with_its_name(encoding: str) -> None:
    # "Hello" compressed by brotli.
    rejected = text_of_response(HEAD + f"Content-Encoding: {encoding}\r\n\r\n".encode() + b"\x0b\x02\x80Hello\x03")
    assert isinstance(rejected, BadRow) and rejected.raw
    assert rejected.reason == f"the body cannot be decoded (content encoding '{encoding}' is not supported)"
