"""The text of a web page: bytes decoded with the declared charset, main text extracted with trafilatura."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.corpus.read import streams
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions

_CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_DECLARATION_BYTES = 4096
_STATUS = re.compile(rb"HTTP/[0-9.]+ +([0-9]{3})")
_MAX_BYTES = 1 << 30
_STEP_BYTES = 1 << 10
"""Compressed bytes decoded at a time, so that a small body cannot fill the memory before its size is checked."""


def read_html(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield the text of an HTML file as one row."""
    held, size = bytearray(), 0
    for chunk in streams.chunks(path):
        if isinstance(chunk, streams.Fault):
            yield RawRow("file", BadRow(chunk.reason), 0)
            return
        size += len(chunk)
        if options.max_bytes is not None and size > options.max_bytes:
            yield RawRow("file", BadRow(f"a page of more than {options.max_bytes:,} bytes"), 0)
            return
        held += chunk
    yield RawRow("document 0", text_of(bytes(held)), 0)


def text_of_response(response: bytes, max_bytes: int = _MAX_BYTES) -> str | BadRow:
    """Return the text of an HTTP response as crawls store it: status line, headers, body.

    The body may be chunked and compressed. The text is empty if the response is not a page (a status other than 2xx,
    an image).
    """
    head, blank_line, body = response.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if not blank_line or status is None:
        return BadRow("not an HTTP response", raw=response[:200])
    if not status[1].startswith(b"2"):
        return ""
    fields = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    kind = fields.get(b"content-type", b"text/html")
    if b"html" not in kind and b"text/plain" not in kind:
        return ""
    try:
        if fields.get(b"transfer-encoding") == b"chunked":
            body = _join_chunks(body)
        if body:
            body = _decode_content(body, fields.get(b"content-encoding", b""), max_bytes)
    except ValueError as error:
        return BadRow(f"the body cannot be decoded ({error})", raw=body[:200])
    declared = _CHARSET.search(kind)
    if b"html" not in kind:
        return _decode_text(body, declared[1] if declared else None)
    return text_of(body, declared[1] if declared else None)


def text_of(page: bytes, charset: bytes | None = None) -> str | BadRow:
    """Return the main text of an HTML page; empty if it has none."""
    declared = _CHARSET.search(page[:_DECLARATION_BYTES])
    html = _decode_text(page, charset or (declared[1] if declared else None))
    if isinstance(html, BadRow) or not html.strip():
        return html
    try:
        import trafilatura
    except ImportError as error:
        raise ResourceError(
            "extracting text from web pages needs trafilatura, which is not installed", do=install_command("corpus")
        ) from error
    return trafilatura.extract(html, include_comments=False, include_tables=False) or ""


def _decode_text(raw: bytes, charset: bytes | None) -> str | BadRow:
    """Decode as UTF-8 if the bytes are valid UTF-8, otherwise strictly with the declared charset."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        index = error.start
    try:
        if charset is not None and codecs.lookup(charset.decode()).name != "utf-8":
            text = raw.decode(charset.decode())
            text.encode()  # The codec `unicode_escape` gives surrogates, which cannot be written.
            return text
    except (LookupError, UnicodeError):  # The codec `undefined` raises the latter for any input.
        pass
    return BadRow(f"neither UTF-8 (byte 0x{raw[index]:02x} at {index}) nor the declared charset", raw=raw[:200])


def _decode_content(body: bytes, encodings: bytes, max_bytes: int) -> bytes:
    """Undo the content encodings of a body, the last one first; raise a ValueError if one cannot be undone."""
    for encoding in reversed([name.strip() for name in encodings.split(b",")]):
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            body = _decompress(body, lambda: zlib.decompressobj(wbits=47), b"\x1f\x8b", zlib.error, max_bytes)
        elif encoding == b"zstd":
            zstandard = streams.load_zstandard()
            new = zstandard.ZstdDecompressor().decompressobj
            body = _decompress(body, new, b"\x28\xb5\x2f\xfd", zstandard.ZstdError, max_bytes)
        elif encoding not in (b"", b"identity"):
            raise ValueError(f"content encoding {encoding.decode('latin-1')!r} is not supported")
    return body


def _decompress(body: bytes, new: Callable[[], Any], magic: bytes, failure: type[Exception], max_bytes: int) -> bytes:
    """Decompress all members of a body; raise a ValueError if it is corrupt, truncated or larger than allowed."""
    parts, size = list[bytes](), 0
    while not parts or body.startswith(magic):
        member, start = new(), 0
        while start < len(body) and not member.eof:
            try:
                parts.append(member.decompress(body[start : start + _STEP_BYTES]))
            except failure as error:
                raise ValueError(str(error)) from error
            start += _STEP_BYTES
            size += len(parts[-1])
            if size > max_bytes:
                raise ValueError(f"it has more than {max_bytes:,} bytes, which reading.longest_mb allows")
        if not member.eof:
            raise ValueError("it ends too early")
        body = member.unused_data + body[start:]
    return b"".join(parts)


def _join_chunks(body: bytes) -> bytes:
    """Join the chunks of a body; raise a ValueError if it is truncated."""
    if not _is_chunk_size(body[: max(0, body.find(b"\r\n"))]):
        # Crawlers often store the body without its chunks and keep the header that announces them.
        return body
    parts, start = list[bytes](), 0
    while start < len(body):
        end = body.find(b"\r\n", start)
        line = body[start:] if end < 0 else body[start:end]
        if not _is_chunk_size(line):
            raise ValueError(f"no chunk size at byte {start}")
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        if end < 0 or len(parts[-1]) < size:
            break
        start = end + 2 + size + 2
    raise ValueError("it ends too early")


def _is_chunk_size(line: bytes) -> bool:
    return re.fullmatch(rb"[0-9A-Fa-f]{1,8}[ \t]*(?:;.*)?", line) is not None
