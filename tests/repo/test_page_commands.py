"""Every command of every page is one that the command line accepts, and every recipe on a page is valid.

Tutorials, lessons and checks are also executed (tests/runs). What a command prints is in a block without a language of
a shell: `text`, `json` or none. Nothing runs here: a command is parsed by the real command line, its recipe and
overrides are validated, and the scripts that it names exist.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.repo.test_site import FENCE, PAGES

from headstart import verbs
from headstart.cli import app

ROOT = Path(__file__).parents[2]
GENERATED = ("docs/help.md", "docs/tree.md", "docs/support.md", "docs/licenses.md", "docs/reference/")
PAGES = [
    *[page for page in PAGES if not page.relative_to(ROOT).as_posix().startswith(GENERATED)],
    *[ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "recipes/README.md")],
]
SHELL, FILES, OUTPUT = {"bash", "sh"}, {"yaml", "toml", "python"}, {"text", "json", "markdown", ""}
REFUSED = {"docs/lab-notes.md": "objective.rat=1", "CONTRIBUTING.md": "objective=word_order"}
"""Commands that are not valid here: one shows an error message, one needs the file that its page adds."""
PLACEHOLDER = re.compile(r"…|\.\.\.|\[|<|\b[A-Z]{4,}\b")
"""A command with a placeholder is not complete: only its name is checked."""
RUNS = re.compile(r"(?:python|pytest) ([\w.-]+/[\w/.-]+\.py)\b")
NAMED = re.compile("MissingParameter|requires an argument|needs the name of a command")
"""How a command without its arguments is refused; a sentence may name one."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[str, str]]:
    """The language and the text of each block of a page."""
    return [(language, block) for _, _, language, block in FENCE.findall(text)]


def lines(text: str) -> Iterator[str]:
    """The lines of the shell blocks of a page."""
    for language, block in blocks(text):
        if language in SHELL:
            yield from block.replace("\\\n", " ").splitlines()


def mentions(text: str) -> Iterator[str]:
    """The commands within the sentences of a page."""
    yield from re.findall(r"`((?:headstart|make|python) [^`\n]+)`", FENCE.sub("", text))


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, without pipes, redirections and what they are substituted into."""
    words: list[str] = []
    lexer = shlex.shlex(re.sub(r"\$\(([^()]*)\)", r" ; \1 ; ", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("|&;"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def commands(line: str) -> Iterator[list[str]]:
    """The words of every `headstart …` of a line."""
    for words in simple_commands(line):
        while words and re.fullmatch(r"\w+=\S*|time|nohup|\(+|do|then|!", words[0]):
            words = words[1:]
        if words[:1] == ["headstart"]:
            end = next((i for i, word in enumerate(words) if word in ("<", ">", ">>", ")", "done")), len(words))
            yield words[1:end]


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> str:
    """Parse a command as the command line does, without running it; return the name of the (sub-)command."""
    command, context, name = command_line(), None, "headstart"
    while hasattr(command, "commands"):
        while words and words[0].startswith("--"):
            if words[0] == "--version":
                return name
            words = words[1:]
        assert words, f"`{name}` needs the name of a command"
        assert words[0] in command.commands, f"`{name} {words[0]}` is not a command"
        command, name, words = command.commands[words[0]], f"{name} {words[0]}", words[1:]
    if not any(map(PLACEHOLDER.search, words)):
        context = command.make_context(name, list(words))
        recipe = context.params.get("recipe") or context.params.get("study") or context.params.get("definition")
        overrides = context.params.get("overrides") or []
        if recipe and str(recipe).startswith(("recipes/", "studies/")):
            assert verbs.load(str(recipe), list(overrides))
    return name


def problems(text: str, refused: str = "") -> Iterator[str]:
    """Yield what is wrong with the commands of a page, apart from those with the word `refused`."""
    in_blocks = list(lines(text))
    for line in [*in_blocks, *mentions(text)]:
        for words in commands(line):
            try:
                if refused not in words:
                    parse(words)
            except Exception as error:
                if line in in_blocks or not NAMED.search(f"{type(error).__name__} {error}"):
                    yield f"{line}: {error}"
        yield from (f"{line}: no file {path}" for path in RUNS.findall(line) if not (ROOT / path).is_file())
        yield from (f"{line}: no such target" for name in re.findall(r"^make ([a-z]\w*)", line) if name not in TARGETS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_accepted(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert not list(problems(page.read_text(encoding="utf-8"), REFUSED.get(name_of(page), "")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_a_command_a_file_or_an_output(page):
    assert {language for language, _ in blocks(page.read_text(encoding="utf-8"))} <= SHELL | FILES | OUTPUT


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_on_a_page_can_be_compiled_and_imports_what_exists(page):
    """CONTRIBUTING.md shows lines to insert, which a test of its own inserts."""
    for language, block in blocks(page.read_text(encoding="utf-8")):
        if language == "python" and page.name != "CONTRIBUTING.md":
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and re.match(r"headstart(\.|$)", node.module or ""):
                    module = importlib.import_module(node.module)
                    missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                    assert not missing, f"{node.module} has no {missing}"


@pytest.mark.parametrize(
    "line",
    [
        "headstart pretrian recipes/quickstart/pretrain.yaml",
        "headstart pretrain recipes/quickstart/pretrain.yaml --quite",
        "headstart pretrain recipes/quickstart/pretrain.yaml trainng.budget='5 min'",
        "cat x | headstart study run studies/none.yaml > y",
        "headstart finetune",
        "python docs/none.py",
        "make nothing",
    ],
)
def test_a_wrong_command_is_found(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert list(problems(f"```bash\n{line}\n```\n"))
