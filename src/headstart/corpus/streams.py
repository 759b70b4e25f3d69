"""Bytes of a file, plain, gzipped or zstd, here or in an object store; and its lines, of which none is lost.

A stream that ends too soon, or holds bytes that cannot be unpacked, gives what could be read and then a `Fault`;
where another member of the archive begins after it, reading goes on there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from headstart.core.errors import DataError, ResourceError, first_line

_CHUNK = 1 << 18
_CAREFUL = 64
_BOM = b"\xef\xbb\xbf"
_MAGIC = {"gz": b"\x1f\x8b\x08", "zst": b"\x28\xb5\x2f\xfd"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A stretch that could not be read, and why."""

    reason: str


class Line(NamedTuple):
    """One line with its end, at its offset in the unpacked stream; `fault` says why there is none."""

    offset: int
    raw: bytes
    fault: str = ""


def is_remote(path: str) -> bool:
    """Say whether a path names an object store, such as s3://bucket/key."""
    return "://" in path


def is_packed(path: str) -> bool:
    """Say whether a file is unpacked on being read, by its suffix."""
    return path.rpartition(".")[2] in _MAGIC


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, here or in an object store (by pyarrow's file systems)."""
    try:
        if not is_remote(path):
            with open(path, "rb") as file:
                yield file
            return
        from pyarrow.fs import FileSystem

        system, key = FileSystem.from_uri(path)
        with system.open_input_file(key) as remote:
            yield remote
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}", do="Check corpus.files") from error


def chunks(path: str, start: int = 0) -> Iterator[bytes | Fault]:
    """Yield the unpacked bytes of a file from an offset on (0 for packed ones), and a Fault where some are lost."""
    with opened(path) as file:
        if start:
            file.seek(start)
        raw = iter(lambda: file.read(_CHUNK), b"")
        yield from _unpacked(raw, path.rpartition(".")[2]) if is_packed(path) else raw


def lines(path: str, start: int = 0, stop: int | None = None, longest: int | None = None) -> Iterator[Line]:
    """Yield the lines that begin in [start, stop), as bytes; a line past `longest` bytes is a fault, never held.

    A range that does not begin at 0 leaves its first, cut line to the range before it.
    """
    held: list[bytes] = []
    # Begun one byte early: if a line ends there, the range begins with a whole one, and else with a cut one.
    offset, size, cut = max(0, start - 1), 0, start > 0
    for chunk in chunks(path, offset):
        if isinstance(chunk, Fault):
            yield Line(offset, b"", chunk.reason)
            offset, held, size = offset + size, [], 0
            continue
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            size += len(piece) + 1
            if stop is not None and offset >= stop:
                return
            if not cut:
                yield _line(offset, held, piece + b"\n", size, longest)
            offset, held, size, cut = offset + size, [], 0, False
        size += len(rest)
        if cut or (longest is not None and size > longest):
            held = []
        elif rest:
            held.append(rest)
        if stop is not None and offset >= stop:
            return
    if size and not cut:
        yield _line(offset, held, b"", size, longest)


def _line(offset: int, held: list[bytes], last: bytes, size: int, longest: int | None) -> Line:
    if longest is not None and size > longest:
        return Line(offset, b"", f"a line of {size:,} bytes; corpus.longest_mb allows {longest:,}")
    raw = b"".join((*held, last)) if held else last
    return Line(offset, raw.removeprefix(_BOM) if offset == 0 else raw)


def _unpacked(raw: Iterator[bytes], kind: str) -> Iterator[bytes | Fault]:
    """Unpack member after member; after damage, go on at the next member's magic bytes."""
    new, failures = _unpacker(kind)
    magic, rest = _MAGIC[kind], b""
    unpacker, fed = new(), False
    for chunk in raw:
        rest += chunk
        while rest:
            if fed or rest.startswith(magic[: len(rest)]):
                before = unpacker.copy() if hasattr(unpacker, "copy") else None
                try:
                    out, fed = unpacker.decompress(rest), True
                except failures as error:
                    yield from _salvaged(before, rest, failures)
                    yield Fault(f"torn {kind} ({first_line(error)})")
                    rest, unpacker, fed = _next_member(rest[1:], magic), new(), False
                    continue
                if out:
                    yield out
                if not unpacker.eof:
                    rest = b""
                    break
                rest, unpacker, fed = unpacker.unused_data, new(), False
            elif rest.strip(b"\0"):
                yield Fault(f"torn {kind} (no {kind} data where a member should begin)")
                rest = _next_member(rest[1:], magic)
            else:
                rest = b""  # Padding with zeros after the last member is common, and harmless.
    if fed:
        yield Fault(f"torn {kind} (it ends in the middle of a member)")


def _unpacker(kind: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    try:
        import zstandard
    except ImportError as error:
        raise ResourceError(
            "zstandard, which unpacks .zst, is not installed", do="pip install 'headstart[corpus]'"
        ) from error
    return lambda: zstandard.ZstdDecompressor().decompressobj(), (zstandard.ZstdError,)


def _salvaged(unpacker: Any, damaged: bytes, failures: tuple[type[Exception], ...]) -> Iterator[bytes]:
    """Yield what can be unpacked before the damage, in small steps from the last good state."""
    if unpacker is None:
        return
    try:
        for start in range(0, len(damaged), _CAREFUL):
            out = unpacker.decompress(damaged[start : start + _CAREFUL])
            if out:
                yield out
    except failures:
        return


def _next_member(rest: bytes, magic: bytes) -> bytes:
    """Return what follows from the next member's beginning on; an end that might be one is kept."""
    found = rest.find(magic)
    return rest[found:] if found >= 0 else b""
