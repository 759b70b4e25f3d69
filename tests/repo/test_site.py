"""The site: every page is in the navigation, every link and anchor leads somewhere, and every recipe is valid.

Only the last test needs the generator.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headstart import verbs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "tables" not in path.parts)
FENCE = re.compile(r"^( *)(```+)(\w*)\n(.*?)^\1\2$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
WITH_RECIPE = {"pretrain", "finetune", "index", "plan"}


def in_navigation(entries: list | dict | str) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for page, below in entries.items():
            yield from (page, *in_navigation(below))
    else:
        for entry in entries:
            yield from in_navigation(entry)


def prose(page: Path) -> str:
    """The text of a page without its code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]+`", "`…`", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that a forge and the generator give to the headings of a page."""
    headings = re.findall(r"^#{1,4} +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Yield each link of a page that leads to no file, or to no heading of it."""
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else (page.parent / name).resolve()
        if not file.is_file():
            yield f"{target} is not a file"
        elif anchor and anchor not in anchors(file):
            yield f"{target} has no such heading"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [block for _, _, kind, block in FENCE.findall(text) if kind == language]


def test_every_page_is_in_the_navigation_once():
    navigation = yaml.safe_load((DOCS / "navigation.yaml").read_text(encoding="utf-8"))
    listed = [page for part in navigation.values() for page in in_navigation(part)]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in PAGES), "change docs/navigation.yaml"


def test_the_generator_is_told_of_every_other_file():
    """A Markdown file outside of the navigation is a warning, and so an error, of the generator."""
    line = re.search(r"^exclude_patterns = (.+)$", (DOCS / "conf.py").read_text(encoding="utf-8"), re.MULTILINE)
    # The generator's patterns: `*` stays in a folder, `**` does not.
    wild = {"**": ".*", "*": "[^/]*"}
    excluded = [
        re.compile("".join(wild.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", pattern)) + "(/.*)?")
        for pattern in ast.literal_eval(line[1])
    ]
    for path in sorted(set(DOCS.rglob("*.md")) - set(PAGES)):
        name = path.relative_to(DOCS).as_posix()
        assert any(pattern.fullmatch(name) for pattern in excluded), f"{name}: change exclude_patterns in docs/conf.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(page):
    assert not list(broken_links(page))


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A heading\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#a-heading) [b](there.md#none) [c](missing.md) [d](#e) `[f](g)`\n", encoding="utf-8")
    assert list(broken_links(page)) == [
        "there.md#none has no such heading",
        "missing.md is not a file",
        "#e has no such heading",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_pages_are_plain_markdown(page):
    """No directive or role of a generator, so that it can be replaced; no picture from elsewhere."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^```+\{|^:::", text, re.MULTILINE)
    assert not re.search(r"\{\w+\}`", prose(page))
    assert not re.search(r"!\[[^\]]*\]\(https?:|(?<!\\)<(?:script|iframe|img)\b", prose(page))
    assert not re.findall(r"(?<!\\)<[A-Za-z]+>", prose(page)), "a browser takes this for a tag; write \\<"


@pytest.mark.parametrize("block", blocks("coming-from.md", "yaml"), ids=lambda block: block.splitlines()[0][2:40])
def test_recipes_of_the_comparison_are_valid(block):
    assert verbs.load(yaml.safe_load(block))


@pytest.mark.parametrize("page", ["index.md", "coming-from.md"])
def test_commands_with_a_recipe_are_valid(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = 0
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["headstart"] and words[1] in WITH_RECIPE:
                options = [word for word in words[3:] if not word.startswith("--")]
                assert verbs.load(words[2], options), line
                found += 1
    assert found, f"{page} has no command that runs a recipe"


def test_the_site_builds_without_a_warning(tmp_path):
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing; un-skipped by the packages of the extra `site`")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(tmp_path).with_suffix(".md").as_posix() for path in tmp_path.rglob("*.html")}
    assert {page.relative_to(DOCS).as_posix() for page in PAGES} <= built
    assert "calibr" in (tmp_path / "searchindex.js").read_text(encoding="utf-8"), "the search index lacks the pages"
    for page in tmp_path.glob("*.html"):
        outside = re.findall(
            r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//[^"']+""", page.read_text()
        )
        assert not outside, f"{page.name} needs a resource from elsewhere: {outside}"
