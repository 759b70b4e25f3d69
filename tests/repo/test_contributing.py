"""CONTRIBUTING.md, followed to the letter: its files are written, its commands run, and the objective trains.

Two liberties: the plugin is installed into a folder of its own, not into the environment that runs the tests,
and `headstart` and `pytest` are those of this interpreter.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import headstart
from headstart.core import artifact, registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHAPTER = "## Add an objective, start to finish\n"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"# (\S+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of the page; one with a path in its first line is a file."""

    language: str
    text: str

    @property
    def path(self) -> str | None:
        match = PATH.match(self.text)
        return match[1] if match else None


def blocks() -> list[Block]:
    assert PAGE.count(CHAPTER) == 1
    return [Block(language, text) for language, text in BLOCK.findall(PAGE.partition(CHAPTER)[2])]


def commands() -> list[list[str]]:
    (shell,) = [block for block in blocks() if block.language == "sh"]
    return [shlex.split(line, comments=True) for line in shell.text.splitlines()]


def files() -> dict[str, str]:
    return {block.path: block.text for block in blocks() if block.path}


Follow = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place like the clone, with the plugin's folder beside it as the page has it."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling builds the plugin and is missing; `pip install 'headstart[dev]'` brings it")
    place = tmp_path_factory.mktemp("contributing")
    clone = place / "headstart"
    clone.mkdir()
    for name in ("recipes", "tests", "pyproject.toml"):
        (clone / name).symlink_to(ROOT / name)
    for name, text in files().items():
        path = place / "headstart-word-order" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return clone


@pytest.fixture(scope="module")
def follow(clone: Path) -> Follow:
    """Runs one of the page's commands in the clone."""
    packages = clone.parent / "packages"
    # The same Headstart as here, by its full path, since the working directory is another.
    python_path = os.pathsep.join([str(packages), str(Path(headstart.__file__).resolve().parents[1])])

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        # Nothing is fetched: the builder and the plugin's dependencies are here already.
        apart = ["--target", str(packages), "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        words = {
            "pip": ["-m", "pip", *arguments, *apart],
            "headstart": ["-m", "headstart", *arguments],
            "pytest": ["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        }[program]
        environment = os.environ | {"PYTHONPATH": python_path, "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="module")
def said(follow: Follow) -> dict[str, str]:
    """What each command of the page printed, by its first words; they are run in the page's order."""
    return {" ".join(command[:2]): follow(command).stdout for command in commands()[:-1]} | {
        "pretrain": follow(commands()[-1]).stdout
    }


def test_the_new_objective_is_listed_with_its_help_and_paper(said):
    (line,) = [line for line in said["headstart list"].splitlines() if line.startswith("word_order")]
    assert "Restore the order of the tokens in shuffled spans" in line
    assert line.endswith("[Wang et al. 2020, StructBERT]")


def test_its_own_test_and_the_contract_suite_pass(said):
    assert re.search(r"\b1 passed", said["pytest ../headstart-word-order/tests"])
    passed = re.search(r"(\d+) passed", said["pytest tests/contracts/test_objectives.py"])
    assert passed and int(passed[1]) >= 10, "the contract suite did not pick the plugin up"


def test_it_trains_through_the_command_line(said, clone):
    folder = clone / "runs" / "word-order"
    manifest = artifact.verify(folder, "checkpoint of pretrain")
    assert manifest["recipe"]["objective"] == {"name": "word_order", "rate": 0.15, "span": 3}
    assert manifest["progress"]["steps"] == 40
    lines = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.3, losses
    assert "40 updates" in said["pretrain"]


def test_the_registry_line_serves_inside_the_tree(monkeypatch, tmp_path):
    import headstart.objectives as objectives

    (line,) = [block.text for block in blocks() if block.language == "python" and not block.path]
    entry = ast.literal_eval("{" + line + "}")
    (name, target) = next(iter(entry.items()))
    source = files()["src/headstart_word_order/word_order.py"]
    (tmp_path / "word_order.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    monkeypatch.setitem(registry.TABLES["objectives"], name, target)
    found = registry.resolve("objectives", name)
    try:
        assert registry.build("objectives", found.Config()).config.span == 3
        assert found.Config().name == name
    finally:
        sys.modules.pop("headstart.objectives.word_order")
        del objectives.word_order


def test_the_example_is_short_and_keeps_the_house_style(tmp_path):
    source = files()["src/headstart_word_order/word_order.py"]
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 60
    path = tmp_path / "word_order.py"
    path.write_text(source, encoding="utf-8")
    for check in (["check"], ["format", "--check"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *check,
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
            str(path),
        ]
        if importlib.util.find_spec("ruff") is None:
            pytest.skip("ruff is missing; `pip install 'headstart[dev]'` brings it")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_line_is_like_the_others():
    (line,) = [block.text.strip() for block in blocks() if block.language == "markdown"]
    headings = re.findall(r"^- \*\*(.+?):\*\*", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    match = re.match(r"- \*\*(.+?):\*\* .+\.$", line)
    assert match and match[1] in headings


def test_the_page_names_only_habits_that_the_makefile_has():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for words in re.findall(r"`?\bmake ((?:[a-z]+ ?)+)`", PAGE) for word in words.split()} | {"install"}
    assert named >= {"lint", "types", "imports", "test", "fast", "ci", "format", "docs"}
    assert named <= targets
