"""The tree that the README prints is the tree on the disk.

The block stands between `<!-- tree -->` and `<!-- /tree -->`, fenced. Each line is an entry and what it is
for: `name` or `name/`, at least two blanks, a comment. Indentation says what lies inside what.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- tree -->\s*```\w*\n(.*?)\n```\s*<!-- /tree -->", re.DOTALL)
LINE = re.compile(r"(?P<indent>[ │├└─]*)(?P<name>\S+)(?:\s{2,}#?\s*(?P<comment>\S.*))?$")
UNLISTED = {"__init__.py", "py.typed"}


def parse(text: str) -> dict[str, str]:
    """Return path → comment for each line of a tree."""
    entries: dict[str, str] = {}
    open_folders: list[tuple[int, str]] = []
    for line in filter(str.strip, text.splitlines()):
        match = LINE.match(line.rstrip())
        assert match, f"cannot read {line!r}: it wants a name, two blanks and a comment"
        column = len(match["indent"])
        while open_folders and open_folders[-1][0] >= column:
            open_folders.pop()
        parent = open_folders[-1][1] if open_folders else ""
        path = parent + match["name"].removeprefix("./")
        if path in ("", "headstart/") and not open_folders and not entries:
            continue
        assert path.rstrip("/") not in map(_bare, entries), f"{path} is listed twice"
        entries[path] = match["comment"] or ""
        if path.endswith("/"):
            open_folders.append((column, path))
    return entries


def expected(files: set[str], listed: set[str]) -> set[str]:
    """Return what a tree must list: the top, every module of the package, and all of each folder that it opens."""
    folders = {str(parent) for file in files for parent in PurePosixPath(file).parents} - {"."}
    everything = files | folders
    required = {path for path in everything if "/" not in path}
    required |= {file for file in files if file.startswith("src/headstart/") and file.endswith(".py")}
    opened = {str(PurePosixPath(path).parent) for path in listed} - {"."}
    # `src/headstart/` on one line opens headstart, not src.
    opened &= listed
    required |= {path for path in everything if str(PurePosixPath(path).parent) in opened}
    ancestors = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    return {path for path in required if PurePosixPath(path).name not in UNLISTED} - ancestors


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    found = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found, "README.md has no fenced block between <!-- tree --> and <!-- /tree -->"
    return parse(found[1])


@pytest.fixture(scope="module")
def files() -> set[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git here; un-skipped in a clone")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return {name for name in names if name and (ROOT / name).exists()}


def test_every_listed_path_exists(tree):
    assert not [path for path in tree if not (ROOT / path).exists()]
    assert not [path for path in tree if path.endswith("/") != (ROOT / path).is_dir()], "a folder's name ends in /"


def test_every_entry_has_its_comment(tree):
    assert not [path for path, comment in tree.items() if not comment]


def test_nothing_on_disk_is_missing(tree, files):
    listed = set(map(_bare, tree))
    assert not sorted(expected(files, listed) - listed)


def test_parser_reads_both_manners_of_indentation():
    plain = "src/headstart/  the package\n  core/  no torch\n    errors.py  the exceptions\nLICENSE  Apache-2.0"
    drawn = (
        "src/headstart/      # the package\n└── core/           # no torch\n"
        "    └── errors.py   # the exceptions\nLICENSE             # Apache-2.0"
    )
    assert parse(plain) == parse(drawn)
    assert list(parse(plain)) == ["src/headstart/", "src/headstart/core/", "src/headstart/core/errors.py", "LICENSE"]
    assert parse(plain)["LICENSE"] == "Apache-2.0"


def test_a_gap_is_found():
    files = {"LICENSE", "src/headstart/__init__.py", "src/headstart/core/a.py", "src/headstart/core/b.py", "docs/x.md"}
    listed = {"src/headstart", "src/headstart/core", "src/headstart/core/a.py", "docs"}
    assert expected(files, listed) - listed == {"LICENSE", "src/headstart/core/b.py"}
    assert expected({"docs/x.md", "docs/y.md"}, {"docs", "docs/x.md"}) - {"docs", "docs/x.md"} == {"docs/y.md"}


def _bare(path: str) -> str:
    return path.rstrip("/")
