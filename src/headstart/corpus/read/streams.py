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
from headstart.corpus.read import addresses

_CHUNK = 1 << 18
_CAREFUL = 64
_BOM = b"\xef\xbb\xbf"
_MAGIC = {"gz": b"\x1f\x8b\x08", "zst": b"\x28\xb5\x2f\xfd"}
_WIDEST_WINDOW = 1 << 31
"""What `zstd --long=31` needs; the library's own limit is 128 MB, and long files of crawls are packed with more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A stretch that could not be read, and why."""

    reason: str


class Line(NamedTuple):
    """One line with its end, at its offset in the unpacked stream; `fault` says why there is none."""

    offset: int
    raw: bytes
    fault: str = ""


def packer_of(path: str) -> str:
    """Return the suffix of the packer that a file is unpacked by on being read; nothing for others."""
    suffix = addresses.bare(path).rpartition(".")[2].lower()
    return suffix if suffix in _MAGIC else ""


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, here or in an object store (by pyarrow's file systems)."""
    try:
        if not addresses.is_remote(path):
            with open(addresses.local(path), "rb") as file:
                yield file
            return
        system, key = addresses.system_of(path)
        with system.open_input_file(key) as remote:
            yield remote
    except FileNotFoundError as error:
        raise DataError(f"there is no file {addresses.bare(path)}", do="Check the recipe's files") from error


def chunks(path: str, start: int = 0) -> Iterator[bytes | Fault]:
    """Yield the unpacked bytes of a file from an offset on (0 for packed ones), and a Fault where some are lost."""
    with opened(path) as file:
        if start:
            file.seek(start)
        raw = iter(lambda: file.read(_CHUNK), b"")
        yield from _unpacked(raw, packer) if (packer := packer_of(path)) else raw


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
        # A cut line that goes on to the end of the range leaves nothing to begin in it.
        if stop is not None and (offset + size if cut else offset) >= stop:
            return
    if size and not cut:
        yield _line(offset, held, b"", size, longest)


def too_long(what: str, size: int, longest: float) -> str:
    """Say why something is not held."""
    return f"a {what} of {size:,} bytes; reading.longest_mb allows {longest:,}"


def _line(offset: int, held: list[bytes], last: bytes, size: int, longest: int | None) -> Line:
    if longest is not None and size > longest:
        return Line(offset, b"", too_long("line", size, longest))
    raw = b"".join((*held, last)) if held else last
    return Line(offset, raw.removeprefix(_BOM) if offset == 0 else raw)


def _unpacked(raw: Iterator[bytes], kind: str) -> Iterator[bytes | Fault]:
    """Unpack member after member; after damage, go on at the next member's magic bytes, with one Fault for a stretch.

    Magic bytes inside junk begin a member that gives nothing: it belongs to the stretch that is told already.
    """
    new, failures = _unpacker(kind)
    magic, rest, tail = _MAGIC[kind], b"", b""
    unpacker, fed, lost, told, begun = new(), False, False, False, False
    for chunk in raw:
        rest += chunk
        while rest:
            if lost:
                rest, lost = _next_member(rest, magic)
                if lost:
                    break
            # Padding with zeros after a member is common, and harmless.
            rest = rest if fed else rest.lstrip(b"\0")
            if not rest:
                break
            begun = True
            if fed or rest.startswith(magic[: len(rest)]):
                before = unpacker.copy() if hasattr(unpacker, "copy") else None
                try:
                    out = unpacker.decompress(rest)
                except failures as error:
                    for saved in _salvaged(before, rest, failures):
                        yield saved
                        told = False
                    if not told:
                        yield Fault(f"torn {kind} ({first_line(error)})")
                    # The next member may begin in what the damaged one has been given before.
                    rest = tail + rest if fed else rest[1:]
                    unpacker, fed, lost, told = new(), False, True, True
                    continue
                if out:
                    yield out
                told = told and not (out or unpacker.eof)
                if unpacker.eof:
                    rest, unpacker, fed = unpacker.unused_data, new(), False
                else:
                    rest, tail, fed = b"", rest[1 - len(magic) :], True
            else:
                if not told:
                    yield Fault(f"torn {kind} (no {kind} data where a member should begin)")
                lost = told = True
    if fed and not told:
        yield Fault(f"torn {kind} (it ends in the middle of a member)")
    if not begun:
        # What an interrupted copy leaves: even a packed text of nothing has a member.
        yield Fault(f"torn {kind} (there is nothing in it)")


def _unpacker(kind: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    try:
        import zstandard
    except ImportError as error:
        raise ResourceError(
            "zstandard, which unpacks .zst, is not installed", do="pip install 'headstart[corpus]'"
        ) from error
    return lambda: zstandard.ZstdDecompressor(max_window_size=_WIDEST_WINDOW).decompressobj(), (zstandard.ZstdError,)


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


def _next_member(rest: bytes, magic: bytes) -> tuple[bytes, bool]:
    """Return what follows from the next member's beginning on; or an end that might be one, and that none was found."""
    found = rest.find(magic)
    if found >= 0:
        return rest[found:], False
    kept = next((size for size in range(len(magic) - 1, 0, -1) if rest.endswith(magic[:size])), 0)
    return rest[len(rest) - kept :], True
