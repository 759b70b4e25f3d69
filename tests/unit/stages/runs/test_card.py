"""The model card: its sentences, and values that contain Markdown."""

from __future__ import annotations

import re

import yaml

from headstart.stages.runs import card
from headstart.stages.runs.manifest import FinetuneData, FinetuneManifest, PretrainManifest

RECIPE = {"adaptation": {"name": "full"}, "task": {"kind": "classify"}, "model": "runs/a|b`c", "note": "```\nx\n```"}


def manifest(**fields):
    data = FinetuneData(
        train_source="data/a|b.csv", validation_source="`odd`.csv", test_source="two\nlines.csv",
        train_rows=1500, validation_rows=20, test_rows=60,
    )  # fmt: skip
    values = {
        "recipe": RECIPE, "seed": 2, "data": data, "table": "| method |", "architecture": "BertForMaskedLM",
        "trainable_parameters": 5, "pipeline": "text-classification",
    }  # fmt: skip
    return FinetuneManifest(**values | fields)


def cells(line: str) -> list[str]:
    """Split a table row at its pipes, as a Markdown parser does."""
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def test_markup_in_values_does_not_break_the_card():
    text = card.finetuned(manifest())
    header = next(i for i, line in enumerate(text.splitlines()) if line.startswith("| split"))
    rows = [cells(line) for line in text.splitlines()[header : header + 5]]
    assert {len(row) for row in rows} == {3}
    assert [row[2] for row in rows[2:]] == ["`data/a|b.csv`", "`` `odd`.csv ``", "`two lines.csv`"]
    assert "# classify by full from ``runs/a\\|b`c``\n" in text
    recipe = re.search(r"^````yaml\n(.*?)^````$", text, re.DOTALL | re.MULTILINE)
    assert recipe and yaml.safe_load(recipe[1]) == RECIPE, "a fence in a value does not end the block"


def test_the_step_of_the_kept_weights_is_stated():
    text = card.finetuned(manifest(), best_step=3, steps=25)
    assert "on 1,500 labeled rows" in text and "weights of seed 2" in text
    assert "Best weights: step 3 of 25." in text
    assert "Best weights" not in card.finetuned(manifest())
    assert "Nothing was trained." in card.finetuned(manifest(trainable_parameters=0), best_step=0, steps=0)


def test_a_pre_trained_card_escapes_names_of_corpora():
    data = {
        "sources": [{"name": "a|b.txt"}], "train": {"tokens": 5},
        "corpora": {"a|`b": {"share": 0.5, "train": {"tokens": 5}}},
    }  # fmt: skip
    typed = PretrainManifest.model_validate({
        "recipe": {"objective": {"name": "masked_lm"}, "backbone": {"family": "encoder", "path": "runs/x_y"}},
        "seed": 0, "data": data, "architecture": "BertForMaskedLM", "parameters": 1234,
        "progress": {"tokens": 10, "epochs": 2.0, "epochs_of": {"a|`b": 2.0}},
        "metrics": {"validation": {"loss": 3.0, "loss/a|`b": 3.5}, "unigram_entropy": 5.0},
    })  # fmt: skip
    text = card.pretrained(typed)
    assert "Files: `a\\|b.txt`" in text and "continued from `runs/x_y`. It has 1,234 parameters" in text
    assert r"| a\|`b | 50.0% | 5 | 2.00 |".replace("`", r"\`") in text
    assert r"| held-out loss on a\|`b | 3.500 |".replace("`", r"\`") in text
    assert "| held-out loss (nats per prediction) | 3.000 |" in text
