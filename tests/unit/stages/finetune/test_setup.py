"""A run opens its checkpoint once and encodes each split once, whatever the number of methods and seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import headstart
from headstart.core import config
from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.stages.finetune.data import EncodedRows
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.setup import open_setup
from headstart.tasks.classify import Classify
from headstart.tasks.prompt import Prompt
from headstart.tasks.source import CheckpointFolder


@pytest.fixture
def counts(monkeypatch) -> Counter[str]:
    """How often checkpoints are opened, tokenizers are loaded, and each file is encoded by a task."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str, key: Any) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls[key(*arguments, **keywords)] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(owner, name, counted)

    count(CheckpointFolder, "__init__", lambda *_, **__: "checkpoint")
    count(AutoTokenizer, "from_pretrained", lambda *_, **__: "tokenizer")
    for task in (Classify, Prompt):
        count(task, "encode", lambda task, rows, *_, training=False: _split(rows, training))
    return calls


def _split(rows: Examples, training: bool) -> str:
    return "train" if training else Path(rows.source).stem


def test_three_adaptations_with_three_seeds(way, recipe_of, labelled_rows, tmp_path, counts):
    raw = recipe_of["finetune"](
        way, output=str(tmp_path / "out"), seeds=3, compare_with=["majority", "features", "scratch"]
    )
    raw["data"]["validation"] = recipe_of["rows"](tmp_path / "validation.csv", labelled_rows[:20])
    raw["training"]["max_length"] = 256  # texts of the maximum length are encoded again, to count the truncated ones
    headstart.finetune(raw, quiet=True)
    assert counts == {"checkpoint": 1, "tokenizer": 1, "train": 1, "validation": 1, "test": 1}
    assert len(list((tmp_path / "out" / "cells").glob("*-seed-*"))) == 12


def test_sampled_training_rows_are_encoded_for_each_cell(way, recipe_of, tmp_path, counts):
    raw = recipe_of["finetune"](way, output=str(tmp_path / "out"), seeds=2, compare_with=["features"])
    raw["data"] |= {"train_rows": 10, "validation": str(way / "test.csv")}
    raw["training"]["max_length"] = 256
    headstart.finetune(raw, quiet=True)
    assert counts["train"] == 4, "each seed samples other rows"
    assert counts["test"] == 2, "validation and test, once each"
    assert counts["checkpoint"] == counts["tokenizer"] == 1


@pytest.mark.parametrize(("shots", "times"), [(0, 1), (2, 3)])
def test_a_prompt_is_encoded_once_for_each_choice_of_examples(way, recipe_of, tmp_path, counts, shots, times):
    raw = recipe_of["finetune"](
        way, output=str(tmp_path / "out"), seeds=3, compare_with=["majority"], adaptation="zero_shot",
        task={"kind": "prompt", "shots": shots, "template": "{text} {label}"},
    )  # fmt: skip
    raw["training"]["max_length"] = 256
    headstart.finetune(raw, quiet=True)
    assert counts["test"] == times and counts["checkpoint"] == 1


def test_rows_are_encoded_again_only_if_they_or_the_task_change(checkpoint):
    task = Prompt(Prompt.Config(shots=1))
    rows = Examples({"text": ["one", "two", "three"]}, ["a", "b", "a"], "rows")
    task.fit_labels(rows)
    spec: InputSpec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(64)
    encoded = EncodedRows(task, spec)
    task.show(rows, 0)
    first = encoded.encode("test", rows)
    assert encoded.encode("test", rows) is first
    assert encoded.encode("validation", rows) is not first, "each split has its own features"
    other = next(seed for seed in range(1, 20) if _shown(task, rows, seed) != _shown(task, rows, 0))
    task.show(rows, other)
    assert encoded.encode("test", rows) != first
    task.show(rows, 0)
    assert encoded.encode("test", rows) == first
    assert encoded.encode("test", rows.take([0])) == first[: len(encoded.encode("test", rows.take([0])))]


def _shown(task: Prompt, rows: Examples, seed: int) -> list[Any]:
    task.show(rows, seed)
    return task.shown


def test_too_many_examples_are_refused_before_the_first_cell(way, recipe_of, tmp_path):
    raw = recipe_of["finetune"](
        way, output=str(tmp_path / "out"), adaptation="zero_shot", task={"kind": "prompt", "shots": 6}
    )
    raw["data"]["train_rows"] = 4
    with pytest.raises(DataError, match="shots is 6"):
        open_setup(config.fill(FinetuneRecipe, raw))
