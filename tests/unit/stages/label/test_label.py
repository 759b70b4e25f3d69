"""Rows are chosen, labeled by a person, and added to the training data."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.stages.label import add, ask, choose, sheet, strategies
from headstart.stages.label.sheet import Chosen, Sheet


@pytest.fixture(scope="module")
def model(way) -> Path:
    return way / "tuned"


@pytest.fixture
def pool(tmp_path, labelled_rows) -> Path:
    path = tmp_path / "pool.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "source"])
        writer.writerows([text, "verses"] for text, _ in labelled_rows[:60])
        writer.writerows([[labelled_rows[0][0], "again"], ["", "empty"], ["=1+1 is a formula", "sheet"]])
    return path


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_margin_is_small_where_the_model_could_decide_otherwise():
    assert strategies.margin({"a": 0.5, "b": 0.45, "c": 0.05}) == pytest.approx(0.05)
    assert strategies.margin({"a": 0.9, "b": 0.42, "c": 0.1}, threshold=0.4) == pytest.approx(0.02)
    assert strategies.margin({"a": 1.0}) == 1.0


def test_diverse_rows_are_unsure_and_of_different_kinds():
    """Three kinds of unsure rows, one of them in most rows: each kind is chosen, and no sure row."""
    generator = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], [24, 3, 3])
    margins = np.concatenate([generator.uniform(0, 0.1, 30), generator.uniform(0.5, 1, 300)])
    vectors = np.concatenate([np.eye(3)[kinds], generator.normal(size=(300, 3))]) + generator.normal(0, 0.01, (330, 3))
    asked: list[int] = []

    def vectors_of(rows):
        asked.extend(rows)
        return vectors[rows]

    chosen = strategies.choose("diverse", margins, 3, vectors_of, seed=0)
    assert sorted(kinds[chosen]) == [0, 1, 2] and len(asked) == 30
    assert strategies.choose("margin", margins, 3, vectors_of) == list(np.argsort(margins)[:3])
    drawn = strategies.choose("random", margins, 5, vectors_of, seed=1)
    assert len(set(drawn)) == 5 and drawn == strategies.choose("random", margins, 5, vectors_of, seed=1)


def test_equal_vectors_give_as_many_rows_as_were_asked_for():
    assert len(strategies.choose("diverse", np.linspace(0, 1, 40), 4, lambda rows: np.ones((len(rows), 2)))) == 4


def test_chosen_rows_are_those_the_model_is_unsure_of(model, pool, tmp_path):
    done = choose.run(pool, model, tmp_path / "sheet.csv", 10)
    rows = cells(tmp_path / "sheet.csv")
    assert len(rows) == 10 and done["pool"] == 61, "one text is there twice, one is empty"
    assert done["mean_margin"] < done["mean_margin_of_the_pool"]
    assert list(rows[0]) == ["row", "text", "prediction", "probability", "label"]
    given = cells(pool)
    assert all(row["label"] == "" and row["text"].lstrip("'") == given[int(row["row"]) - 1]["text"] for row in rows)
    with pytest.raises(DataError, match="exists already"):
        choose.run(pool, model, tmp_path / "sheet.csv", 10)
    choose.run(pool, model, tmp_path / "next.csv", 10, exclude=[tmp_path / "sheet.csv"])
    assert not {row["text"] for row in rows} & {row["text"] for row in cells(tmp_path / "next.csv")}


def test_a_filled_sheet_is_added_and_corrects_rows(model, pool, tmp_path, labelled_rows):
    train = tmp_path / "train.csv"
    first = labelled_rows[100]
    with train.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [["text", "label", "note"], [*first, "kept"], [*labelled_rows[101], ""], [*first, "again"]]
        )
    labels = sorted({label for _, label in labelled_rows})
    other = next(label for label in labels if label != first[1])
    chosen = Sheet(
        [
            Chosen(1, {"text": "=1+1 is a formula"}, [other]),
            Chosen(2, {"text": first[0]}, [other]),
            Chosen(3, {"text": "x"}),
        ],
        "label",
    )
    chosen.write(tmp_path / "sheet.csv")
    assert "'=1+1" in (tmp_path / "sheet.csv").read_text(encoding="utf-8"), "a spreadsheet does not run it"
    done = add.run(tmp_path / "sheet.csv", model, train, tmp_path / "new.parquet")
    assert (done["rows"], done["added"], done["replaced"], done["new_labels"]) == (4, 1, 1, [])
    rows = pq.read_table(tmp_path / "new.parquet").to_pylist()
    assert rows[0] == {"text": first[0], "label": other, "note": "kept"} and rows[3]["text"] == "=1+1 is a formula"
    assert rows[2] == {**rows[0], "note": "again"}, "a text that occurs twice has one label"
    empty = Sheet([Chosen(1, {"text": "x"})], "label")
    empty.write(tmp_path / "empty.csv")
    with pytest.raises(DataError, match=r"no row .* has a label"):
        add.run(tmp_path / "empty.csv", model, train, tmp_path / "other.parquet")


def test_label_studio_reads_the_import_and_its_export_comes_back(model, pool, tmp_path, labelled_rows):
    choose.run(pool, model, tmp_path / "tasks.json", 4, strategy="margin")
    with pytest.raises(RecipeError, match=r"9,999 rows are to be chosen from"):
        choose.run(pool, model, tmp_path / "more.json", 9_999)
    (tmp_path / "tasks.json").rename(tmp_path / "kept.json")
    with pytest.raises(DataError, match=r"tasks\.xml exists already"):
        choose.run(pool, model, tmp_path / "tasks.json", 4)
    (tmp_path / "kept.json").rename(tmp_path / "tasks.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    labels = sorted({label for _, label in labelled_rows})
    interface = ET.parse(tmp_path / "tasks.xml").getroot()
    assert sorted(choice.get("value") for choice in interface.iter("Choice")) == labels
    assert {f"${name}" for name in tasks[0]["data"]} >= {text.get("value") for text in interface.iter("Text")}
    for number, task in enumerate(tasks):
        result = task["predictions"][0]["result"][0]
        assert result["value"]["choices"][0] in labels and result["to_name"] == interface.find("Text").get("name")
        task["annotations"] = [
            {"was_cancelled": number == 3, "result": [{**result, "value": {"choices": [labels[0]]}}]}
        ]
    (tmp_path / "export.json").write_text(json.dumps(tasks), encoding="utf-8")
    read = sheet.read(tmp_path / "export.json", ["text"], "label", None)
    assert [row.labels for row in read.rows] == [[labels[0]]] * 3 + [[]]
    (tmp_path / "other.json").write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(DataError, match="not an export of Label Studio"):
        sheet.read(tmp_path / "other.json", ["text"], "label", None)


def answers(path: Path, rows: Sheet, labels: list[str], *typed: str) -> str:
    screen, left = io.StringIO(), iter([*typed, "q"])
    ask.Session(path, rows, labels, lambda: next(left), screen).run()
    return screen.getvalue()


def test_answers_are_saved_at_once_and_can_be_undone(tmp_path):
    rows = Sheet([Chosen(i, {"text": f"text {i}\x1b[2J"}, [], ["b"], 0.6) for i in range(1, 5)], "label")
    path = tmp_path / "sheet.csv"
    shown = answers(path, rows, ["a", "b"], "1", "7", "2", "u", "", "s")
    assert [row["label"] for row in cells(path)] == ["a", "b", "", ""] and "'7' is none of the keys" in shown
    assert "\x1b" not in shown and "[4 of 4]" in shown
    again = sheet.read(path, ["text"], "label", None)
    assert "[1 of 2]" in answers(path, again, ["a", "b"]), "answered rows are not asked for again"


def test_several_labels_are_marked_and_accepted(tmp_path):
    rows = Sheet([Chosen(1, {"text": "one"}), Chosen(2, {"text": "two"}, [], ["c"], 0.7)], "labels", ";")
    answers(tmp_path / "sheet.csv", rows, ["a", "b", "c"], "1", "3", "1", "2", "", "")
    assert [row["labels"] for row in cells(tmp_path / "sheet.csv")] == ["c;b", "c"]
    assert sheet.read(tmp_path / "sheet.csv", ["text"], "labels", ";").rows[0].labels == ["c", "b"]


@pytest.mark.parametrize(("typed", "key"), [("\n", ""), ("\r", ""), (" ", " "), ("2", "2"), ("", "q")])
def test_only_enter_accepts_a_guess(typed, key, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert ask._key() == key


@pytest.mark.slow
def test_keys_of_a_real_terminal(model, pool, tmp_path):
    choose.run(pool, model, tmp_path / "sheet.csv", 3)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headstart", "label", "ask", str(tmp_path / "sheet.csv"), "--model", str(model)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, stdin=theirs, **pipes) as process:
        assert process.stdout is not None
        output = ""
        for key in (b"1", b"2", b"q"):
            # Keys that are typed before the question are discarded.
            while not output.endswith("q quit\n"):
                line = process.stdout.readline()
                assert line, output
                output += line
            os.write(ours, key)
            output += "\n"
        output += process.stdout.read()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0 and "2 of 3 rows have a label" in output, output
    assert [bool(row["label"]) for row in cells(tmp_path / "sheet.csv")] == [True, True, False]


def test_wrong_labels_are_found(model, tmp_path, labelled_rows):
    data = tmp_path / "labeled.csv"
    with data.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *labelled_rows[:80]])
    done = choose.run_errors(data, model, tmp_path / "sheet.csv", 5)
    rows = cells(tmp_path / "sheet.csv")
    assert len(rows) == done["suspected"] <= 5 and all(
        row["label"] and row["label"] != row["prediction"] for row in rows
    )


def test_other_tasks_are_refused(way, tmp_path, pool):
    with pytest.raises(ArtifactError, match="--model is an output of `headstart finetune`"):
        choose.run(pool, way / "pretrained", tmp_path / "sheet.csv", 3)
    with pytest.raises(RecipeError, match=r"\.csv for a spreadsheet"):
        choose.run(pool, way / "tuned", tmp_path / "sheet.txt", 3)
