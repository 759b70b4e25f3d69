"""Web crawls, record by record: WARC files of web pages, and WET files of their text.

A record with a wrong length (it is not followed by another record) is rejected. Reading resumes at the next bytes that
look like the start of a record.
"""

from __future__ import annotations

from collections.abc import Iterator

from headstart.corpus.read import streams, webpages
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions, utf8

_RECORD_START, _BLANK_LINE = b"WARC/", b"\r\n\r\n"
_MAX_HEADER_BYTES = 1 << 16
_MAX_BYTES = 1 << 30


def read_warc(path: str, options: ReadOptions) -> Iterator[RawRow]:
    """Yield the text of each page or text record; records of other types (requests, metadata) are not rows."""
    buffer, number = _Buffer(streams.chunks(path)), 0
    max_bytes = options.max_bytes or _MAX_BYTES
    while buffer.fill(len(_RECORD_START)):
        offset = buffer.offset
        record = _record(buffer, max_bytes)
        if record is None:
            continue
        url, value = record
        yield RawRow(f"record {number}", value, offset, {"url": url})
        number += 1
    for offset, reason in buffer.faults:
        yield RawRow(f"byte {offset}", BadRow(reason), offset)


def _record(buffer: _Buffer, max_bytes: int) -> tuple[str | None, str | BadRow] | None:
    """Take one record off the buffer and return its URL and its text or fault; None for a record without a document."""
    start = bytes(buffer.data[:200])
    if not buffer.data.startswith(_RECORD_START):
        return None, _skip(buffer, "bytes that belong to no record", start, 0)
    end = buffer.find(_BLANK_LINE, _MAX_HEADER_BYTES)
    if end < 0:
        return None, _skip(buffer, "a header without an end", start, 1)
    header = _fields(bytes(buffer.data[:end]))
    try:
        length = int(header.get("content-length", ""))
    except ValueError:
        length = -1
    if not 0 <= length <= max_bytes:
        stated = header.get("content-length", "missing")
        return None, _skip(buffer, f"an impossible content length ({stated[:40]})", start, 1)
    body_at = end + len(_BLANK_LINE)
    if not buffer.fill(body_at + length):
        return None, _skip(buffer, f"a content length of {length:,}, which exceeds the file", start, 1)
    has_next = buffer.fill(body_at + length + len(_BLANK_LINE) + len(_RECORD_START))
    after = bytes(buffer.data[body_at + length : body_at + length + len(_BLANK_LINE) + len(_RECORD_START)])
    if after.strip(b"\r\n") and (not after.startswith(_BLANK_LINE + _RECORD_START) or not has_next):
        return None, _skip(buffer, f"a wrong content length of {length:,}", start, 1)
    body = bytes(buffer.data[body_at : body_at + length])
    buffer.drop(body_at + length)
    while buffer.fill(1) and buffer.data[0] in b"\r\n":
        buffer.drop(1)
    return _document(header, body, max_bytes)


def _document(header: dict[str, str], body: bytes, max_bytes: int) -> tuple[str | None, str | BadRow] | None:
    kind, url = header.get("warc-type", ""), header.get("warc-target-uri")
    if kind == "conversion":
        return url, utf8(body)
    if kind == "response":
        return url, webpages.text_of_response(body, max_bytes)
    if kind == "resource":
        is_page = "html" in header.get("content-type", "")
        return url, webpages.text_of(body) if is_page else utf8(body)
    return None


def _skip(buffer: _Buffer, reason: str, raw: bytes, min_bytes: int) -> BadRow:
    """Move the buffer to the next bytes that look like a record, and return what is rejected."""
    buffer.seek_record(min_bytes)
    return BadRow(reason, raw=raw)


def _fields(header: bytes) -> dict[str, str]:
    fields = {}
    for line in header.decode("utf-8", "replace").splitlines()[1:]:
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip().lower()] = value.strip().strip("<>")
    return fields


class _Buffer:
    """A window over a stream: bytes are added at its end and dropped at its start."""

    def __init__(self, chunks: Iterator[bytes | streams.Fault]) -> None:
        self._chunks = chunks
        self.data, self.offset = bytearray(), 0
        self.faults: list[tuple[int, str]] = []

    def fill(self, size: int) -> bool:
        """Read until the buffer holds `size` bytes; return False if the stream ends before that."""
        while len(self.data) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            if isinstance(chunk, streams.Fault):
                self.faults.append((self.offset + len(self.data), chunk.reason))
            else:
                self.data += chunk
        return True

    def find(self, pattern: bytes, limit: int) -> int:
        """Return the index of the first occurrence of a pattern within `limit` bytes, or -1."""
        while (index := self.data.find(pattern, 0, limit)) < 0 and len(self.data) < limit:
            if not self.fill(len(self.data) + 1):
                return -1
        return index

    def drop(self, size: int) -> None:
        """Drop bytes at the start."""
        del self.data[:size]
        self.offset += size

    def seek_record(self, min_bytes: int) -> None:
        """Drop everything before the next start of a record, and at least `min_bytes`."""
        pattern = b"\n" + _RECORD_START
        while (index := self.data.find(pattern, min_bytes)) < 0:
            self.drop(max(0, len(self.data) - (len(pattern) - 1)))
            min_bytes = 0
            if not self.fill(len(self.data) + 1):
                self.drop(len(self.data))
                return
        self.drop(index + 1)
