"""The course: its checks hold, its commands and files exist, and its figures are those of the results.

Every concept has a picture, which the script beside it draws, and every page a lesson.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.repo.test_site import FENCE, LINK

from headstart import verbs
from headstart.cli import app

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
PAGES = sorted(COURSE.glob("*.md"))
TOPICS = [page for page in PAGES if page.name[0].isdigit()]
FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w,]*\d)")
SCALE = {"0.5", "0.8", "100"}
"""Figures of pictures that name a scale or a threshold, and measure nothing."""
WITH_RECIPE = {"pretrain", "finetune", "plan", "corpus", "study"}


def rows(page: Path) -> list[list[str]]:
    """The cells of the tables of a page, without headers."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def commands() -> list[str]:
    return [code for page in TOPICS for row in rows(page) for code in re.findall(r"`(headstart [^`]+)`", " ".join(row))]


def untraced(cell: str, page: Path) -> list[str]:
    """Return the figures of a cell that are on no page of the results that it links to."""
    targets = [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(cell)]
    sources = "".join(path.read_text(encoding="utf-8") for path in targets if "results" in path.parts)
    words = re.sub(r"\]\([^)]+\)|`[^`]*`|[A-Z][\w-]*-\d+", "", cell)  # without links, code, and names such as SST-2
    return [figure for figure in FIGURE.findall(words) if sources and figure not in sources]


def test_there_are_five_topics():
    assert len(TOPICS) == 5


@pytest.mark.parametrize("page", TOPICS, ids=lambda page: page.stem)
def test_checks_hold(page):
    checks = [text for _, _, language, text in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]
    assert len(checks) >= 3 and all("assert " in check for check in checks), "every exercise has a check"
    for check in checks:
        exec(compile(check, str(page), "exec"), {})


@pytest.mark.parametrize("command", commands())
def test_commands_are_valid(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    names = {entry.name or entry.callback.__name__ for entry in app.registered_commands}
    assert words[0] in names | {group.name for group in app.registered_groups}
    recipe = next((index for index, word in enumerate(words) if word.endswith(".yaml")), None)
    if words[0] in WITH_RECIPE and recipe is not None:
        overrides = [word for word in words[recipe + 1 :] if "=" in word and not word.startswith("--")]
        assert verbs.load(words[recipe], overrides)


def test_every_command_writes_an_output_of_its_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    outputs: dict[str, set[str]] = {}
    for command in commands():
        _, verb, recipe, *overrides = [*shlex.split(command), "", ""]
        if verb in ("pretrain", "finetune"):
            outputs.setdefault(str(verbs.load(recipe, [word for word in overrides if word]).output), set()).add(command)
    assert len(outputs) > 20
    assert not [output for output, found in outputs.items() if len(found) > 1], "add output=runs/NAME"


@pytest.mark.parametrize("page", [*TOPICS, COURSE / "which-method.md"], ids=lambda page: page.stem)
def test_figures_are_those_of_the_results(page):
    found = [f"{figure}: {row[-1]}" for row in rows(page) for figure in untraced(row[-1], page)]
    assert not found, "\n".join(found)


def test_a_wrong_figure_is_found():
    page = COURSE / "which-method.md"
    assert untraced("SST-2 with 16: 83.0 ([prompting](../results/prompting.md))", page) == []
    assert untraced("SST-2: 83.7 ([prompting](../results/prompting.md))", page) == ["83.7"]


@pytest.mark.parametrize("page", TOPICS, ids=lambda page: page.stem)
def test_every_concept_has_its_picture(page):
    """One picture for each row of the table, in its order; a figure in a picture is one of the table."""
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[([^:\]]+): [^\]]+\]\((pictures/[^)]+)\)", text)
    assert [concept for concept, _ in pictures] == [row[0] for row in rows(page)[1:]]
    for concept, name in pictures:
        drawing = (COURSE / name).read_text(encoding="utf-8")
        assert f">{concept}</text>" in drawing.replace("&#39;", "'")
        figures = re.findall(r"\d+\.\d+|\d[\d,]{2,}", re.sub(r"<[^>]*>", " ", drawing.partition("</style>")[2]))
        table = " ".join(next(row for row in rows(page) if row[0] == concept))
        assert not [figure for figure in figures if figure not in table and figure not in ("0.5", "0.8", "100")], (
            concept
        )


def test_the_pictures_are_what_the_script_draws(load_script, monkeypatch):
    """A changed color of `picture.css` is a reason to run the script again."""
    monkeypatch.syspath_prepend(COURSE)
    drawn = {name: svg for _, name, _, svg in load_script("docs/course/make_pictures.py").pictures()}
    shown = {path.name: path.read_text(encoding="utf-8") for path in (COURSE / "pictures").glob("*.svg")}
    assert drawn == shown, "run `python docs/course/make_pictures.py`"


@pytest.mark.parametrize("page", TOPICS, ids=lambda page: page.stem)
def test_every_page_has_a_lesson_that_the_index_lists(page):
    lessons = re.findall(r"\((lessons/\w+\.py)\)", page.read_text(encoding="utf-8"))
    index = (COURSE / "index.md").read_text(encoding="utf-8")
    assert lessons and all((COURSE / lesson).is_file() for lesson in lessons)
    assert all(f"]({lesson})" in index and f"python docs/course/{lesson}" in index for lesson in lessons)
