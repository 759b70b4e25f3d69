"""Which files the paths, globs, folders and URLs of a source match, and the name of each file.

The name of a file is its path relative to the common root of the patterns, whichever files exist. Two files of one
folder tree therefore never share a name, and names do not change when a corpus grows or is copied elsewhere.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from headstart.corpus.read import readers, stores, urls
from headstart.corpus.read.formats import printable, suffix_of

_ABOUT = ("license", "licence", "copying", "notice", "readme")
"""Stems of text files that describe a data set and are not part of it."""


@dataclass(frozen=True)
class MatchedFiles:
    """The files that some patterns match."""

    files: dict[str, str]
    """Paths or URLs in sorted order, with their names."""
    skipped: list[str]
    """Names of the files in matched folders that are not read."""


def match(patterns: Sequence[str], known: Container[str], listed: dict[str, stores.Listing]) -> MatchedFiles:
    """Return the files that match any of the patterns, each once.

    Of a folder, only files with a known suffix are taken, and none that describe the data (license, readme). `listed`
    keeps what URLs match, so that a second call lists nothing again.
    """
    roots, files, present = list[list[str]](), set[str](), set[str]()
    for pattern in patterns:
        root, paths, is_folder = _list_files(pattern, listed)
        roots.append(_components(root))
        files.update(path for path in paths if not is_folder or (suffix_of(path) in known and not _is_about(path)))
        present.update(paths)
    depth = _common_depth(roots)
    components = {path: _components(path) for path in files | present}
    order = sorted(components, key=lambda path: "/".join(components[path]))
    names = {path: printable("/".join(components[path][depth:])) for path in order}
    return MatchedFiles(
        {path: name for path, name in names.items() if path in files},
        [name for path, name in names.items() if path not in files],
    )


def _list_files(pattern: str, listed: dict[str, stores.Listing]) -> tuple[str, list[str], bool]:
    """Return the fixed prefix of a pattern, the files that match it, and True if it names a folder."""
    if urls.is_remote(pattern):
        if pattern not in listed:
            listed[pattern] = stores.list_objects(pattern)
        found = listed[pattern]
        return found.root, [str(stored) for stored in found.objects], found.is_folder
    path = Path(urls.local_path(pattern)).expanduser()
    if path.is_dir():
        inside = glob.glob(f"{glob.escape(str(path))}/**/*", recursive=True)
        return str(path), [file for file in inside if Path(file).is_file()], True
    files = [str(file) for file in readers.expand([str(path)], "sources.files")]
    if path.is_file():
        return str(path.parent), files, False
    return str(Path(*takewhile(lambda component: not glob.has_magic(component), path.parts[:-1]))), files, False


def _is_about(path: str) -> bool:
    return (
        suffix_of(path) == "txt" and PurePosixPath(urls.without_options(path)).name.partition(".")[0].lower() in _ABOUT
    )


def _components(path: str) -> list[str]:
    """Split a path, or a URL without its credentials and options, into components."""
    if not urls.is_remote(path):
        return os.path.abspath(path).rstrip("/").split("/")
    store, key, _ = urls.split_url(path)
    scheme, _, host = store.partition("://")
    return [f"{scheme}://{host.rpartition('@')[2]}", *filter(None, key.split("/"))]


def _common_depth(roots: Sequence[Sequence[str]]) -> int:
    """Return the number of leading components that all roots share."""
    for depth, components in enumerate(zip(*roots, strict=False)):
        if len(set(components)) > 1:
            return depth
    return min(map(len, roots))
