"""Crawls: WARC files of web pages, and WET files of the text in them, record by record.

A record whose length lies (what follows it is no record) is rejected by itself, and reading goes on at the next place
that looks like the beginning of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from headstart.corpus.read import streams, webpages
from headstart.corpus.read.formats import BadRow, RawRow, ReadOptions, utf8

_BEGINS, _BETWEEN = b"WARC/", b"\r\n\r\n"
_LONGEST_HEADER = 1 << 16
_LONGEST = 1 << 30


def read_warc(path: str, reading: ReadOptions) -> Iterator[RawRow]:
    """Yield the text of each page or text record; records of other types (requests, metadata) are no rows."""
    buffer, number = _Buffer(streams.chunks(path)), 0
    longest = reading.longest or _LONGEST
    while buffer.fill(len(_BEGINS)):
        offset = buffer.offset
        found = _record(buffer, longest)
        if found is None:
            continue
        yield RawRow(f"record {number}", found[1], offset, {"url": found[0]})
        number += 1
    for offset, fault in buffer.faults:
        yield RawRow(f"byte {offset}", BadRow(fault), offset)


def _record(buffer: _Buffer, longest: int) -> tuple[str | None, str | BadRow] | None:
    """Take one record off the buffer: its address and text or fault, or None for a type that holds no document."""
    begin = bytes(buffer.data[:200])
    if not buffer.data.startswith(_BEGINS):
        return None, _lost(buffer, "bytes that belong to no record", begin, 0)
    end = buffer.find(_BETWEEN, _LONGEST_HEADER)
    if end < 0:
        return None, _lost(buffer, "a header without an end", begin, 1)
    header = _fields(bytes(buffer.data[:end]))
    try:
        length = int(header.get("content-length", ""))
    except ValueError:
        length = -1
    if not 0 <= length <= longest:
        stated = header.get("content-length", "missing")
        return None, _lost(buffer, f"a content length that cannot be ({stated[:40]})", begin, 1)
    body_at = end + len(_BETWEEN)
    if not buffer.fill(body_at + length):
        return None, _lost(buffer, f"a content length of {length:,} past the end of the file", begin, 1)
    whole = buffer.fill(body_at + length + len(_BETWEEN) + len(_BEGINS))
    after = bytes(buffer.data[body_at + length : body_at + length + len(_BETWEEN) + len(_BEGINS)])
    if after.strip(b"\r\n") and (not after.startswith(_BETWEEN + _BEGINS) or not whole):
        return None, _lost(buffer, f"a content length of {length:,} that lies", begin, 1)
    body = bytes(buffer.data[body_at : body_at + length])
    buffer.drop(body_at + length)
    while buffer.fill(1) and buffer.data[0] in b"\r\n":
        buffer.drop(1)
    return _document(header, body, longest)


def _document(header: dict[str, str], body: bytes, longest: int) -> tuple[str | None, str | BadRow] | None:
    kind, url = header.get("warc-type", ""), header.get("warc-target-uri")
    if kind == "conversion":
        return url, utf8(body)
    if kind == "response":
        return url, webpages.text_of_response(body, longest)
    if kind == "resource":
        is_page = "html" in header.get("content-type", "")
        return url, webpages.text_of(body) if is_page else utf8(body)
    return None


def _lost(buffer: _Buffer, reason: str, raw: bytes, skip: int) -> BadRow:
    """Move the buffer to the next place that looks like a record and say what was lost."""
    buffer.seek_record(skip)
    return BadRow(reason, raw=raw)


def _fields(header: bytes) -> dict[str, str]:
    fields = {}
    for line in header.decode("utf-8", "replace").splitlines()[1:]:
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip().lower()] = value.strip().strip("<>")
    return fields


class _Buffer:
    """A window on a stream that grows at its end and is dropped at its beginning."""

    def __init__(self, chunks: Iterator[bytes | streams.Fault]) -> None:
        self._chunks = chunks
        self.data, self.offset = bytearray(), 0
        self.faults: list[tuple[int, str]] = []

    def fill(self, size: int) -> bool:
        """Read on until so many bytes are there; say whether they are."""
        while len(self.data) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            if isinstance(chunk, streams.Fault):
                self.faults.append((self.offset + len(self.data), chunk.reason))
            else:
                self.data += chunk
        return True

    def find(self, what: bytes, limit: int) -> int:
        """Return where something first stands, within a limit; -1 where it does not."""
        while (found := self.data.find(what, 0, limit)) < 0 and len(self.data) < limit:
            if not self.fill(len(self.data) + 1):
                return -1
        return found

    def drop(self, size: int) -> None:
        """Forget bytes at the beginning."""
        del self.data[:size]
        self.offset += size

    def seek_record(self, skip: int) -> None:
        """Drop everything before the next beginning of a record, past the first bytes."""
        mark = b"\n" + _BEGINS
        while (found := self.data.find(mark, skip)) < 0:
            kept = len(mark) - 1
            self.drop(max(0, len(self.data) - kept))
            skip = 0
            if not self.fill(len(self.data) + 1):
                self.drop(len(self.data))
                return
        self.drop(found + 1)
