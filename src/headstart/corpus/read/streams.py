"""The bytes and lines of a file: plain, gzip or zstd, local or in an object store.

A stream that ends too early, or that cannot be decompressed, yields what could be read and then a `Fault`. If another
member of the archive starts after the damage, reading resumes there. No line is lost without a `Fault`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from headstart.core.errors import DataError, ResourceError, first_line
from headstart.core.extras import install_command
from headstart.corpus.read import stores, urls

_CHUNK_BYTES = 1 << 18
_SALVAGE_BYTES = 64
_BOM = b"\xef\xbb\xbf"
_MAGIC = {"gz": b"\x1f\x8b\x08", "zst": b"\x28\xb5\x2f\xfd"}
_NAMES = {"gz": "gzip", "zst": "zstd"}
_MAX_WINDOW_BYTES = 1 << 31
"""The window of `zstd --long=31`. The library's default limit is 128 MB, and large crawl files use more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A range of bytes that could not be read, and the reason."""

    reason: str


class Line(NamedTuple):
    """One line with its line end, and its offset in the decompressed stream; `fault` states why it has no bytes."""

    offset: int
    raw: bytes
    fault: str = ""


def compression_of(path: str) -> str:
    """Return the suffix of a compressed file that can be read ("gz", "zst"), and "" for any other file."""
    suffix = urls.without_options(path).rpartition(".")[2].lower()
    return suffix if suffix in _MAGIC else ""


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, local or in an object store."""
    if urls.is_remote(path):
        with stores.opened(path) as remote:
            yield remote
        return
    try:
        with open(urls.local_path(path), "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"there is no file {urls.without_options(path)}", do="Check the recipe's files") from error


def chunks(path: str, start: int = 0) -> Iterator[bytes | Fault]:
    """Yield the decompressed bytes of a file from an offset on, and a Fault where bytes are lost.

    The offset must be 0 for a compressed file.
    """
    with opened(path) as file:
        yield from _chunks_of(file, path, start)


def lines(path: str, start: int = 0, stop: int | None = None, max_bytes: int | None = None) -> Iterator[Line]:
    """Yield the lines that start in [start, stop), as bytes.

    A line longer than `max_bytes` is a fault and is not held in memory. A range that does not start at 0 leaves its
    first, partial line to the range before it.
    """
    held: list[bytes] = []
    # Start one byte early: if a line ends there, the range starts with a whole line, otherwise with a partial one.
    offset, size, is_partial = max(0, start - 1), 0, start > 0
    # The file is opened here and not by `chunks`, which a `return` would abandon: a file of a store is verified when
    # the block ends, at the end of a range too.
    with opened(path) as file:
        for chunk in _chunks_of(file, path, offset):
            if isinstance(chunk, Fault):
                yield Line(offset, b"", chunk.reason)
                offset, held, size = offset + size, [], 0
                continue
            *whole, rest = chunk.split(b"\n")
            for piece in whole:
                size += len(piece) + 1
                if stop is not None and offset >= stop:
                    return
                if not is_partial:
                    yield _line(offset, held, piece + b"\n", size, max_bytes)
                offset, held, size, is_partial = offset + size, [], 0, False
            size += len(rest)
            if is_partial or (max_bytes is not None and size > max_bytes):
                held = []
            elif rest:
                held.append(rest)
            # No line starts in the range if its partial first line extends to the end of the range.
            if stop is not None and (offset + size if is_partial else offset) >= stop:
                return
        if size and not is_partial:
            yield _line(offset, held, b"", size, max_bytes)


def too_long(what: str, size: int, max_bytes: float) -> str:
    """Return the reason for which a line, record or text above the size limit is rejected."""
    return f"a {what} of {size:,} bytes; reading.longest_mb allows {max_bytes:,}"


def _chunks_of(file: BinaryIO, path: str, start: int) -> Iterator[bytes | Fault]:
    if start:
        file.seek(start)
    raw = iter(lambda: file.read(_CHUNK_BYTES), b"")
    yield from _decompress(raw, compression) if (compression := compression_of(path)) else raw


def _line(offset: int, held: list[bytes], last: bytes, size: int, max_bytes: int | None) -> Line:
    if max_bytes is not None and size > max_bytes:
        return Line(offset, b"", too_long("line", size, max_bytes))
    raw = b"".join((*held, last)) if held else last
    return Line(offset, raw.removeprefix(_BOM) if offset == 0 else raw)


def _decompress(raw: Iterator[bytes], kind: str) -> Iterator[bytes | Fault]:
    """Decompress member after member; after damage, continue at the next member's magic bytes.

    Each damaged range gives one Fault. Magic bytes inside junk start a member without output, which belongs to the
    range that is reported already.
    """
    new, failures = _decompressor(kind)
    magic, name, rest, tail = _MAGIC[kind], _NAMES[kind], b"", b""
    member, in_member, is_lost, is_reported, has_data = new(), False, False, False, False
    for chunk in raw:
        rest += chunk
        while rest:
            if is_lost:
                rest, is_lost = _find_member(rest, magic)
                if is_lost:
                    break
            # Padding with zeros after a member is common and harmless.
            rest = rest if in_member else rest.lstrip(b"\0")
            if not rest:
                break
            has_data = True
            if in_member or rest.startswith(magic[: len(rest)]):
                before = member.copy() if hasattr(member, "copy") else None
                try:
                    out = member.decompress(rest)
                except failures as error:
                    for saved in _salvage(before, rest, failures):
                        yield saved
                        is_reported = False
                    if not is_reported:
                        yield Fault(f"corrupt {name} data ({first_line(error)})")
                    # The next member may start in bytes that the damaged member was given before.
                    rest = tail + rest if in_member else rest[1:]
                    member, in_member, is_lost, is_reported = new(), False, True, True
                    continue
                if out:
                    yield out
                is_reported = is_reported and not (out or member.eof)
                if member.eof:
                    rest, member, in_member = member.unused_data, new(), False
                else:
                    rest, tail, in_member = b"", rest[1 - len(magic) :], True
            else:
                if not is_reported:
                    yield Fault(f"corrupt {name} data (no {name} header where a member should start)")
                is_lost = is_reported = True
    if in_member and not is_reported:
        yield Fault(f"corrupt {name} data (the file ends in the middle of a member)")
    if not has_data:
        # An interrupted copy leaves such a file: even compressed empty text has a member.
        yield Fault(f"corrupt {name} data (the file is empty)")


def _decompressor(kind: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return a function that makes a decompressor for one member, and the errors that it raises."""
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    zstandard = load_zstandard()
    return lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj(), (zstandard.ZstdError,)


def load_zstandard() -> Any:
    """Import zstandard, or raise an error with the pip command that installs it."""
    try:
        import zstandard
    except ImportError as error:
        raise ResourceError(
            "decompressing zstd needs the package zstandard, which is not installed", do=install_command("corpus")
        ) from error
    return zstandard


def _salvage(member: Any, damaged: bytes, failures: tuple[type[Exception], ...]) -> Iterator[bytes]:
    """Yield what can be decompressed before the damage, in small steps from the last good state."""
    if member is None:
        return
    try:
        for start in range(0, len(damaged), _SALVAGE_BYTES):
            out = member.decompress(damaged[start : start + _SALVAGE_BYTES])
            if out:
                yield out
    except failures:
        return


def _find_member(rest: bytes, magic: bytes) -> tuple[bytes, bool]:
    """Return the bytes from the next member's start on, and True if no start was found.

    If none was found, the returned bytes are an end of `rest` that may be the first part of the magic bytes.
    """
    start = rest.find(magic)
    if start >= 0:
        return rest[start:], False
    overlap = next((size for size in range(len(magic) - 1, 0, -1) if rest.endswith(magic[:size])), 0)
    return rest[len(rest) - overlap :], True
