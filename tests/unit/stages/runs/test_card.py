"""The model card: its sentences, and values that contain Markdown."""

from __future__ import annotations

import re

import pytest
import yaml

from headstart.core.recipes import variables
from headstart.stages.runs import card
from headstart.stages.runs.manifest import FinetuneData, FinetuneManifest, Machine, PretrainManifest, SplitOverlap

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


HOSTILE = (
    "a|b.csv",
    "`x`.csv",
    "``` ```.csv",
    "two\nlines.csv",
    "# title\n\n| a | b |\n|---|---|.csv",
    "<script>alert(1)</script>.csv",
    "<img src=x onerror=alert(1)>",
    "](javascript:alert(1)).csv",
    "\\|.csv",
    " ",
    "--- \n...\n---",
    "&lt;b&gt;.csv",
    "a\r\nb\u2028c.csv",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_a_file_breaks_a_card(name):
    """Rendered as CommonMark, the names are text in code: the card has its own tables, headings and code blocks."""
    data = FinetuneData(train_source=name, validation_source=name, test_source=name, test_rows=1)
    recipe = {**RECIPE, "model": name, "note": name, "data": {"train": name}}
    cards = [card.finetuned(manifest(recipe=recipe, data=data)), card.pretrained(pretrained(name))]
    for text, plain in zip(cards, [card.finetuned(manifest()), card.pretrained(pretrained("plain"))], strict=True):
        assert skeleton(text) == skeleton(plain)
        assert "<script" not in outside_code(text) and "<img" not in outside_code(text)
        assert "](javascript" not in outside_code(text).replace("\\](", "")


def pretrained(name: str) -> PretrainManifest:
    """A pre-training run in which everything that a user names has one name."""
    corpus = {"share": 0.5, "train": {"tokens": 5}, "sources": [{"name": name}]}
    built = {"folder": name, "title": name, "corpus": "0" * 64, "datasheet": "0" * 64}
    return PretrainManifest.model_validate({
        "recipe": {"objective": {"name": "masked_lm"}, "backbone": {"family": "encoder", "path": name}},
        "seed": 0, "architecture": "BertForMaskedLM", "parameters": 1234, "cost": {"assumptions": {"price": name}},
        "data": {"sources": [{"name": name}], "train": {"tokens": 5}, "built": built, "corpora": {name: corpus}},
        "progress": {"tokens": 10, "epochs": 2.0, "epochs_of": {name: 2.0}},
        "metrics": {"validation": {"loss": 3.0, f"loss/{name}": 3.5}, "unigram_entropy": 5.0},
    })  # fmt: skip


def skeleton(text: str) -> list[tuple[str, int]]:
    """Return the kind of each block of a card, and for rows of tables the number of their cells."""
    blocks: list[tuple[str, int]] = []
    fence = ""
    for line in text.split("\n"):
        ticks = re.match(r"`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
        elif ticks and "`" not in line[ticks.end() :]:
            fence = ticks[0]
            blocks.append(("code", 0))
        elif line.startswith(("#", "|", "---", "<")):
            blocks.append((line[0], len(cells(line)) if line[0] == "|" else 0))
    assert not fence, "every code block ends"
    return blocks


def outside_code(text: str) -> str:
    """Return a card without code blocks and code spans."""
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", text).replace("\\<", "")


def test_the_step_of_the_kept_weights_is_stated():
    text = card.finetuned(manifest(best_step=3, steps=25))
    assert "on 1,500 labeled rows" in text and "weights of seed 2" in text
    assert "Kept weights: step 3 of 25" in text
    assert "Kept weights" not in card.finetuned(manifest())
    assert "Nothing was trained." in card.finetuned(manifest(trainable_parameters=0, best_step=0, steps=0))


def test_rows_in_two_splits_truncated_texts_and_the_machine_are_stated():
    machine = Machine(
        cpu="A|B CPU", cores=2, threads=1, memory_gb=16.0, device="cpu", precision="bf16", attention="eager"
    )
    data = FinetuneData(
        train_rows=200, validation_rows=20, test_rows=60, truncated={"train": 50, "validation": 0, "test": 6},
        max_length=64, overlap=[SplitOverlap(split="test", other="train", rows=60, exact=3)],
    )  # fmt: skip
    text = card.finetuned(manifest(data=data, machines=[machine]))
    assert "3 of 60 test rows (5.0%) are also among the training rows: 3 exactly." in text
    assert "max_length (64 tokens) are truncated: 25.0% of train, 0.0% of validation, 10.0% of test." in text
    assert r"## Machine" in text and r"A\|B CPU" in text and "bf16" in text and "16 GB" in text
    assert "## Machine" not in card.finetuned(manifest()), "a run of an earlier version has none"
    assert r"A\|B CPU" in card.pretrained(pretrained("x").model_copy(update={"machines": [machine]}))


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


def test_variables_of_the_recipe_are_not_expanded_in_a_card(tmp_path, monkeypatch):
    monkeypatch.setenv("HS_TEST_DATA", "/hidden/in-here")
    expanded = variables.expand({"train": "${HS_TEST_DATA}/a.csv", "model": "${HS_TEST_DATA}/m"})
    data = FinetuneData(train_source="/hidden/in-here/a.csv", test_rows=60)
    text = card.finetuned(manifest(recipe={**RECIPE, "model": expanded["model"], "data": expanded}, data=data))
    assert "hidden" not in text
    assert "from `${HS_TEST_DATA}/m`" in text and "| `${HS_TEST_DATA}/a.csv` |" in text
