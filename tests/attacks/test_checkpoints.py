"""A hostile checkpoint is refused with a sentence, or is harmless: its code never runs, and no command breaks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from checkpoints import CHANGES, Change
from command import Answer, Command

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void.\n"


def generate(headstart: Command, folder: Path, work: Path) -> Answer:
    """Fill a blank, or continue a text."""
    return headstart("generate", folder, "the [MASK] was", "--max-new-tokens", "3")


def finetune(headstart: Command, folder: Path, work: Path) -> Answer:
    """Fine-tune for one step."""
    (work / "rows.csv").write_text("text,label\n" + "".join(f"row {i} good day,{i % 2}\n" for i in range(16)))
    (work / "test.csv").write_text("text,label\n" + "".join(f"test {i} bad night,{i % 2}\n" for i in range(8)))
    recipe = {
        "model": str(folder), "output": str(work / "finetune"), "seeds": 1,
        "task": {"kind": "classify"},
        "data": {"train": str(work / "rows.csv"), "validation": 4, "test": str(work / "test.csv")},
        "training": {"max_length": 16, "budget": "1 steps"}, "adaptation": {"name": "full"}, "compare_with": [],
    }  # fmt: skip
    (work / "finetune.yaml").write_text(yaml.safe_dump(recipe))
    return headstart("finetune", work / "finetune.yaml")


def pretrain(headstart: Command, folder: Path, work: Path) -> Answer:
    """Continue pre-training for one step."""
    (work / "text.txt").write_text("".join(f"{number} {TEXT}\n" for number in range(40)))
    recipe = {
        "corpus": {"files": [str(work / "text.txt")], "validation": 0.2},
        "output": str(work / "pretrain"),
        "tokenizer": {"path": str(folder)}, "backbone": {"family": "checkpoint", "path": str(folder)},
        "objective": {"name": "masked_lm"}, "training": {"seq_length": 16, "batch_tokens": 64, "budget": "1 steps"},
    }  # fmt: skip
    (work / "pretrain.yaml").write_text(yaml.safe_dump(recipe))
    return headstart("pretrain", work / "pretrain.yaml")


def index(headstart: Command, folder: Path, work: Path) -> Answer:
    """Embed a few passages."""
    (work / "text.txt").write_text(TEXT * 2)
    recipe = {"model": str(folder), "corpus": {"files": [str(work / "text.txt")]}, "output": str(work / "index")}
    (work / "index.yaml").write_text(yaml.safe_dump(recipe))
    return headstart("index", work / "index.yaml")


VERBS = {"generate": generate, "finetune": finetune, "pretrain": pretrain, "index": index}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder for recipes and outputs."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("verb", VERBS)
def test_the_good_encoder_passes(verb: str, encoder: Path, work: Path, headstart: Command):
    answer = VERBS[verb](headstart, encoder, work)
    assert answer.code == 0, answer.output


def test_there_are_a_hundred_hostile_checkpoints():
    assert len(CHANGES) >= 100


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_hostile_encoder_runs_nothing_and_breaks_nothing(
    change: Change, encoder: Path, tmp_path: Path, work: Path, canary: Path, headstart: Command
):
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    change(folder)
    for verb in VERBS.values():
        verb(headstart, folder, work).require_sentence()
        assert not canary.exists()


@pytest.mark.parametrize("name", [name for name in CHANGES if "generation" in name or "weights" in name])
def test_a_hostile_decoder_runs_nothing_and_breaks_nothing(
    name: str, decoder: Path, tmp_path: Path, work: Path, canary: Path, headstart: Command
):
    folder = tmp_path / "model"
    shutil.copytree(decoder, folder)
    CHANGES[name](folder)
    generate(headstart, folder, work).require_sentence()
    assert not canary.exists()
