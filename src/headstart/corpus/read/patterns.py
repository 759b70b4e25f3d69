"""Which files the paths, globs, folders and addresses of a source stand for, and how each is named.

A file's name is its path from what the patterns have in common, whatever files there are: two files of one folder tree
never share a name, and names stay as a corpus grows or is copied elsewhere.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from headstart.corpus.read import addresses, readers
from headstart.corpus.read.formats import printable, suffix_of

_ABOUT = ("license", "licence", "copying", "notice", "readme")
"""Stems of text files that a folder of data holds beside the data."""


@dataclass(frozen=True)
class Matched:
    """What some patterns stand for."""

    files: dict[str, str]
    """Paths or addresses, sorted, and their names."""
    passed_over: list[str]
    """Names of files in folders that are not read."""


def matched(patterns: Sequence[str], known: Container[str]) -> Matched:
    """Return the files of all patterns, each once; of folders those with known suffixes that are not about the data."""
    roots, files, others = list[list[str]](), set[str](), set[str]()
    for pattern in patterns:
        root, found, is_folder = _listed(pattern)
        read = [path for path in found if not is_folder or (suffix_of(path) in known and not _is_about(path))]
        roots.append(_steps(root))
        files.update(read)
        others.update(found)
    # The first place at which not all roots go the same way.
    shared = next((place for place, steps in enumerate(zip(*roots, strict=False)) if len(set(steps)) > 1), None)
    shared = min(map(len, roots)) if shared is None else shared
    steps_of = {path: _steps(path) for path in files | others}
    order = sorted(steps_of, key=lambda path: "/".join(steps_of[path]))
    names = {path: printable("/".join(steps_of[path][shared:])) for path in order}
    return Matched(
        {path: name for path, name in names.items() if path in files},
        [name for path, name in names.items() if path not in files],
    )


def _listed(pattern: str) -> tuple[str, list[str], bool]:
    """Return the part of a pattern that is the same for all its files, these, and whether it names a folder."""
    if addresses.is_remote(pattern):
        return addresses.listed(pattern)
    path = Path(addresses.local(pattern)).expanduser()
    if path.is_dir():
        inside = glob.glob(f"{glob.escape(str(path))}/**/*", recursive=True)
        return str(path), [file for file in inside if Path(file).is_file()], True
    files = [str(file) for file in readers.expand([str(path)], "sources.files")]
    if path.is_file():
        return str(path.parent), files, False
    return str(Path(*takewhile(lambda step: not glob.has_magic(step), path.parts[:-1]))), files, False


def _is_about(path: str) -> bool:
    return suffix_of(path) == "txt" and PurePosixPath(path).name.partition(".")[0].lower() in _ABOUT


def _steps(path: str) -> list[str]:
    """Return a path, or an address without what is secret in it, step by step."""
    if not addresses.is_remote(path):
        return os.path.abspath(path).rstrip("/").split("/")
    store, key, _ = addresses.split(path)
    scheme, _, host = store.partition("://")
    return [f"{scheme}://{host.rpartition('@')[2]}", *filter(None, key.split("/"))]
