"""Every measured figure on a page that names its source is in that source.

A line, or a row of a table whose header does, names its source by a link to a page of `docs/results` or to the lab
notes. Figures are numbers with a decimal point or a thousands separator, outside of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repo.test_site import DOCS, FENCE, LINK, PAGES

ROOT = Path(__file__).parents[2]
FIGURE = re.compile(r"(?<![\w.,/-])(?:\d[\d,]*\.\d+(?![\w.]*\d)|\d{1,3}(?:,\d{3})+(?![\w.,]*\d))")
SOURCES = ("docs/results/", "docs/lab-notes.md")
PAGES = [page for page in PAGES if not page.relative_to(ROOT).as_posix().startswith(("docs/results/", "docs/tree.md"))]
PAGES = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "recipes" / "README.md"]
DERIVED = {"docs/scaling.md": {"1,050"}}
"""Figures that the line itself derives from those of its source."""


def sources(line: str, page: Path) -> list[Path]:
    """The pages with measurements that a line links to."""
    links = [link.partition("#")[0] for link in LINK.findall(line)]
    targets = [(page.parent / link).resolve() for link in links if link and ":" not in link]
    return [path for path in targets if path.is_relative_to(ROOT) and is_source(path)]


def is_source(path: Path) -> bool:
    return path.suffix == ".md" and path.relative_to(ROOT).as_posix().startswith(SOURCES)


def untraced(text: str, page: Path) -> Iterator[tuple[str, str]]:
    """Yield the figures of a page that are not on the pages that their line links to, each with its line."""
    header: list[Path] = []
    lines = FENCE.sub("", text).splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below.startswith("|--"):
            header = sources(line, page)
        elif not line.startswith("|"):
            header = []
        named = sources(line, page) or header
        content = "".join(path.read_text(encoding="utf-8") for path in named)
        words = re.sub(r"\]\([^)]+\)|`[^`]*`", "", line)
        yield from ((figure, line) for figure in FIGURE.findall(words) if named and figure not in content)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_figures_are_those_of_their_source(page):
    derived = DERIVED.get(page.relative_to(ROOT).as_posix(), set())
    found = [f"{figure}: {line}" for figure, line in untraced(page.read_text(encoding="utf-8"), page)]
    assert not [line for line in found if line.partition(":")[0] not in derived], "\n".join(found)


def test_a_wrong_figure_is_found():
    source = "[few labels](results/few-labels.md)"
    text = (
        f"contrast 68.6, full 55.3 ({source})\n\n| a | 12.0 ({source}) |\n|---|---|\n| b | 81.5 |\n\n1.23 elsewhere\n"
    )
    assert [figure for figure, _ in untraced(text, DOCS / "page.md")] == ["55.3", "81.5"]
