"""docs/tree.md lists the tree on the disk, and says of every file what it is for."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_tree(load_script) -> ModuleType:
    return load_script("docs/make_tree.py")


@pytest.fixture(scope="module")
def files(make_tree) -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git here; un-skipped in a clone")
    return make_tree.files()


def test_the_page_is_the_tree(make_tree, files):
    assert make_tree.PAGE.read_text(encoding="utf-8") == make_tree.render(files), "it is stale; run `make docs`"


def test_every_entry_is_described(make_tree, files):
    assert not [path for path in make_tree.entries(files) if not make_tree.describe(path)]


def test_every_module_is_listed(make_tree, files):
    modules = {name for name in files if name.startswith("src/headstart/") and not name.endswith("__init__.py")}
    listed = make_tree.entries(files)
    assert not sorted(name for name in modules if name.endswith(".py") and name not in listed)


def test_no_description_outlives_its_file(make_tree):
    assert not [path for path in make_tree.DESCRIPTIONS if not (ROOT / path).exists()]


def test_folders_stay_small(files):
    """A folder with more files than a reader takes in at a glance wants to be split; methods may stay side by side."""
    flat = {"objectives", "adaptation", "tasks", "training", "evaluation"}
    counts: dict[str, int] = {}
    for name in files:
        path = Path(name)
        if name.startswith("src/headstart/") and path.suffix == ".py":
            counts[str(path.parent)] = counts.get(str(path.parent), 0) + 1
    assert not {folder: count for folder, count in counts.items() if count > 20 and Path(folder).name not in flat}
