"""The text of a web page: bytes decoded as they say they are, the main text extracted by trafilatura."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator

from headstart.core.errors import ResourceError
from headstart.corpus.read import streams
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions

_CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_DECLARED_WITHIN = 4096
_STATUS = re.compile(rb"HTTP/[0-9.]+ +([0-9]{3})")
_LONGEST = 1 << 30


def read_html(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield the one text of a file of HTML."""
    held, size = bytearray(), 0
    for chunk in streams.chunks(path):
        if isinstance(chunk, streams.Fault):
            yield RawRow("file", BadRow(chunk.reason), 0)
            return
        size += len(chunk)
        if reading.longest is not None and size > reading.longest:
            yield RawRow("file", BadRow(f"a page of more than {reading.longest:,} bytes"), 0)
            return
        held += chunk
    yield RawRow("document 0", text_of(bytes(held)), 0)


def text_of_response(response: bytes, longest: int = _LONGEST) -> str | BadRow:
    """Return the text of an HTTP response as crawls store it: status line, headers, body, chunked and packed or not.

    What is no page (a status other than 2xx, a picture) has no text.
    """
    head, between, body = response.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if not between or status is None:
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
            body = _unchunked(body)
        if body and fields.get(b"content-encoding") in (b"gzip", b"x-gzip", b"deflate"):
            body = _inflated(body, longest)
    except (ValueError, zlib.error) as error:
        return BadRow(f"a body that cannot be unpacked ({error})", raw=body[:200])
    declared = _CHARSET.search(kind)
    if b"html" not in kind:
        return _decoded(body, declared[1] if declared else None)
    return text_of(body, declared[1] if declared else None)


def text_of(page: bytes, charset: bytes | None = None) -> str | BadRow:
    """Return the main text of a page; nothing where it has none."""
    declared = _CHARSET.search(page[:_DECLARED_WITHIN])
    html = _decoded(page, charset or (declared[1] if declared else None))
    if isinstance(html, BadRow) or not html.strip():
        return html
    try:
        import trafilatura
    except ImportError as error:
        raise ResourceError(
            "extracting text from pages needs trafilatura, which is not installed",
            do="pip install 'headstart[corpus]'",
        ) from error
    return trafilatura.extract(html, include_comments=False, include_tables=False) or ""


def _decoded(raw: bytes, charset: bytes | None) -> str | BadRow:
    """Decode as UTF-8 if it is that, or else strictly as declared."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = error.start
    try:
        if charset is not None and codecs.lookup(charset.decode()).name != "utf-8":
            text = raw.decode(charset.decode())
            text.encode()  # The codec `unicode_escape` makes surrogates, which nobody can write.
            return text
    except (LookupError, UnicodeError):  # The codec `undefined` raises the latter for anything.
        pass
    return BadRow(f"neither UTF-8 (byte 0x{raw[place]:02x} at {place}) nor what it declares", raw=raw[:200])


def _inflated(body: bytes, longest: int) -> bytes:
    """Unpack all members of a body; raise where it is cut, or becomes longer than allowed."""
    parts, size = list[bytes](), 0
    while not parts or body.startswith(b"\x1f\x8b"):
        unpacker = zlib.decompressobj(wbits=47)
        parts.append(unpacker.decompress(body, longest - size + 1))
        size += len(parts[-1])
        if size > longest:
            raise ValueError(f"it becomes more than {longest:,} bytes, which reading.longest_mb allows")
        if not unpacker.eof:
            raise ValueError("it ends too soon")
        body = unpacker.unused_data
    return b"".join(parts)


def _unchunked(body: bytes) -> bytes:
    """Join the chunks of a body; raise where it is cut."""
    if not _is_size(body[: max(0, body.find(b"\r\n"))]):
        # Crawlers often store the body without its chunks, and keep the header that announces them.
        return body
    parts, place = list[bytes](), 0
    while place < len(body):
        end = body.find(b"\r\n", place)
        line = body[place:] if end < 0 else body[place:end]
        if not _is_size(line):
            raise ValueError(f"no size of a chunk at {place}")
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        if end < 0 or len(parts[-1]) < size:
            break
        place = end + 2 + size + 2
    raise ValueError("it ends too soon")


def _is_size(line: bytes) -> bool:
    return re.fullmatch(rb"[0-9A-Fa-f]{1,8}[ \t]*(?:;.*)?", line) is not None
