"""`headstart advise` on real questions, by the command line: a model, a page and recipes, the same when run again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.runs.conftest import Command, Finished

ROWS = 240


@pytest.mark.slow
def test_from_a_file_of_questions_to_a_model_a_page_and_recipes(
    headstart: Command, pretrained: Finished, data_folder: Path, tmp_path: Path
):
    rows = pq.read_table(data_folder / "tasks" / "trec6" / "train.parquet").slice(0, ROWS).to_pylist()
    data, output = tmp_path / "questions.csv", tmp_path / "advice"
    with data.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [("question", "kind"), *((row["text"], row["label"]) for row in rows)]
        )
    command = ("advise", str(data), "--model", str(pretrained.folder), "--minutes", "0.4", "--output", str(output))
    done = headstart(*command)
    assert "Use " in done.stdout and "more training labels would buy" in done.stdout
    advice = json.loads((output / "advice.json").read_text(encoding="utf-8"))
    methods = {row["method"]: row for row in advice["methods"]}
    assert {"majority", "svm", "linear_probe"} <= methods.keys()
    assert methods["majority"]["score"] < methods["svm"]["score"]
    assert all(row["low"] <= row["score"] <= row["high"] for row in methods.values())
    assert advice["test"]["rows"] == pq.read_table(output / "data" / "test.parquet").num_rows
    assert advice["opened_for"] == [advice["chosen"]]
    for name in ("advice.md", "advice.html"):
        assert "Recommendation" in (output / name).read_text(encoding="utf-8")
    again = headstart(*command)
    assert again.stdout == done.stdout and "round" not in again.stderr, "nothing is computed again"
    for method in methods:
        headstart("finetune", str(output / "recipes" / f"{method}.yaml"), "--dry-run")
    headstart("predict", str(output / "model"), str(data), "--to", str(tmp_path / "labeled.csv"), "--processes", "1")
    assert (tmp_path / "labeled.csv").read_text(encoding="utf-8").count("\n") >= ROWS


@pytest.mark.slow
def test_a_corpus_adds_a_method_that_is_pretrained_once(
    headstart: Command, pretrained: Finished, data_folder: Path, tmp_path: Path
):
    rows = pq.read_table(data_folder / "tasks" / "trec6" / "train.parquet").slice(0, 700).to_pylist()
    data, corpus, output = tmp_path / "questions.csv", tmp_path / "corpus.txt", tmp_path / "advice"
    with data.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "kind"), *((row["text"], row["label"]) for row in rows[:200])])
    corpus.write_text("\n\n".join(row["text"] for row in rows[200:]), encoding="utf-8")
    command = ("advise", str(data), "--model", str(pretrained.folder), "--output", str(output), "--minutes", "1")
    done = headstart(*command, "--corpus", str(corpus))
    advice = json.loads((output / "advice.json").read_text(encoding="utf-8"))
    adapted = next(row for row in advice["methods"] if row["method"] == "adapt_first")
    assert adapted["adaptation"] == adapted["compared_with"] and "adapting to your text bought" in done.stdout
    assert len(adapted["adapted"]) == adapted["rounds"] and len(list(output.glob("adapted-*"))) == 1
    recipe = (output / "recipes" / "adapt_first.yaml").read_text(encoding="utf-8")
    assert str(corpus) in recipe and "folder" not in recipe
    again = headstart(*command, "--corpus", str(corpus))
    assert again.stdout == done.stdout and "round" not in again.stderr, "nothing is computed again"
    without = headstart(*command)
    assert "adapting" not in without.stdout


@pytest.mark.slow
def test_more_minutes_reuse_what_was_computed(headstart: Command, pretrained: Finished, tmp_path: Path):
    data, output = tmp_path / "rows.csv", tmp_path / "advice"
    words = {"warm": ("sun", "fire", "summer"), "cold": ("ice", "snow", "winter")}
    lines = [f"a day of {word} number {i},{label}" for i in range(20) for label, some in words.items() for word in some]
    data.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    command = ("advise", str(data), "--model", str(pretrained.folder), "--output", str(output), "--minutes")
    first = headstart(*command, "0")
    assert "Not tried: contrast, lora, full." in first.stdout or "to gain" in first.stdout
    cells = {path.name: path.stat().st_mtime_ns for path in (output / "cells").iterdir()}
    headstart(*command, "0.2")
    after = {path.name: path.stat().st_mtime_ns for path in (output / "cells").iterdir()}
    assert cells.items() <= after.items()
