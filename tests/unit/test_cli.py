"""The command line: commands in order, dry runs, and messages about the old form of a command."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import headstart
from headstart.cli import main
from headstart.core.log import logger

PRETRAIN = {"output": "out", "corpus": {"files": ["a.txt"]}, "backbone": "encoder", "objective": "masked_lm"}
FINETUNE = {
    "output": "out", "model": "m", "task": "classify", "adaptation": "full",
    "data": {"train": "a.csv", "validation": 20, "test": "b.csv"},
}  # fmt: skip
CORPUS = {"output": "out", "sources": [{"name": "verses", "files": ["a.txt"]}]}
INDEX = {"output": "out", "model": "m", "corpus": {"files": ["a.txt"]}, "passages": {"limit": 20}}
STUDY = {
    "question": "Which?", "output": "out", "seeds": 1, "reference": "majority", "compare": ["method"],
    "baselines": ["majority"], "overlap": False,
    "base": {"finetune": {key: FINETUNE[key] for key in ("model", "task", "data")}},
    "axes": {"method": {"full": {"finetune.adaptation": "full"}}},
}  # fmt: skip


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADSTART_DEBUG", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        return stopped.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("verb", "recipe", "key"),
    [
        ("pretrain", PRETRAIN, "training"),
        ("finetune", FINETUNE, "training"),
        ("corpus build", CORPUS, "engine"),
        ("index", INDEX, "graph"),
        ("study run", STUDY, "execution"),
    ],
)
def test_a_dry_run_prints_the_filled_recipe_and_does_nothing(call, tmp_path, verb, recipe, key):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    code, out, err = call(*verb.split(), "recipe.yaml", "output=elsewhere", "--dry-run")
    assert code == 0 and not err, err
    filled = yaml.safe_load(out)
    assert filled["output"] == "elsewhere" and key in filled and key not in recipe
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    code, _, err = call(*verb.split(), "recipe.yaml", "outptu=elsewhere", "--dry-run")
    assert code == 2 and "did you mean 'output'?" in err


def test_the_help_lists_the_commands_in_the_order_of_a_project(call):
    code, out, _ = call("--help")
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]
    assert code == 0 and listed[:5] == ["init", "advise", "corpus", "pretrain", "finetune"] and "study" in listed
    assert "--install-completion" in out and "--version" in out


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"headstart {headstart.__version__}\n", "")


def test_the_old_form_of_corpus_names_the_new_one(call):
    code, _, err = call("corpus", "recipe.yaml", "output=x y")
    assert code == 2 and "Run `headstart corpus build recipe.yaml 'output=x y'`." in err
    code, _, err = call("corpus", "stat", "x")
    assert code == 2 and "Did you mean 'stats'?" in err


def test_the_log_is_printed_as_plain_lines_unless_quiet(call, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(PRETRAIN), encoding="utf-8")
    (tmp_path / "a.txt").write_text("a text\n", encoding="utf-8")

    def run(*_) -> Path:
        logger.info("3 documents encoded")
        logger.warning("1 row could not be read")
        return tmp_path

    monkeypatch.setattr("headstart.stages.pretrain.run.run", run)
    monkeypatch.setattr("headstart.stages.pretrain.run.summary", lambda folder: "done")
    assert call("pretrain", "recipe.yaml") == (0, "done\n", "3 documents encoded\n1 row could not be read\n")
    assert call("pretrain", "recipe.yaml", "--quiet") == (0, "done\n", "1 row could not be read\n")


def test_a_library_user_sees_warnings_only():
    code = (
        "from headstart.core.log import logger\nlogger.info('progress')\nlogger.warning('look')\n"
        "import logging; logging.basicConfig(level='INFO', format='%(name)s %(message)s')\nlogger.info('progress')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "look\nheadstart progress\n" and not done.stdout


@pytest.fixture(autouse=True)
def restored_logger():
    """The command line sets up the logger of this process; other tests get it back."""
    handlers, level = list(logger.handlers), logger.level
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    yield
    logger.handlers[:], logger.level = handlers, level
