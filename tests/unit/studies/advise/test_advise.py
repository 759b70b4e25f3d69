"""Rounds, folders and pages of `headstart advise`, on every kind of label that `headstart init` recognizes."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headstart
from headstart.core import artifact, config
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.init import run as init
from headstart.stages.init.splits import NAMES, folds
from headstart.stages.runs.result import FinetuneRun
from headstart.studies.advise import final, page, rounds, texts
from headstart.studies.advise.cells import Cells
from headstart.studies.advise.methods import METHODS, distilling
from headstart.studies.advise.search import SearchResult, TriedMethod

COLORS = ("red", "green", "blue")
_RNG = random.Random(0)


def sentence(word: str) -> str:
    return " ".join(_RNG.choices(("the", "sea", "said", "king", "and", "unto", "land"), k=6)) + f" {word}"


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def classes(path: Path) -> Path:
    return write(path / "rows.csv", [(sentence(c), c) for c in COLORS * 30] + [(sentence("gold"), "gold")])


def several(path: Path) -> Path:
    pairs = [_RNG.sample(COLORS, k=_RNG.randint(1, 2)) for _ in range(90)]
    return write(path / "rows.csv", [(sentence(" ".join(pair)), "; ".join(pair)) for pair in pairs])


def numbers(path: Path) -> Path:
    values = [_RNG.random() for _ in range(90)]
    return write(path / "rows.csv", [(sentence("red" if v > 0.5 else "blue"), f"{v:.3f}") for v in values])


def tags(path: Path) -> Path:
    rows = [sentence(_RNG.choice(COLORS)).split() for _ in range(60)]
    lines = [{"words": row, "tags": ["C" if word in COLORS else "O" for word in row]} for row in rows]
    (path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path / "rows.jsonl"


def test_folds_are_disjoint_balanced_and_keep_equal_texts_together():
    texts = [f"text {i // 2}" for i in range(200)]
    labels = ["a" if i % 20 < 14 else "b" for i in range(200)]
    parts = folds(texts, labels, None, 10)
    assert sorted(row for part in parts for row in part) == list(range(200))
    assert all(18 <= len(part) <= 22 and {labels[row] for row in part} == {"a", "b"} for part in parts)
    assert all(len({texts[row] for row in part}) * 2 == len(part) for part in parts)


def test_no_row_is_held_out_twice_and_every_held_out_label_is_trained(tmp_path, checkpoint):
    look = init.run(classes(tmp_path), init.InitOptions(model=str(checkpoint("bert")), output=tmp_path / "data"))
    rounds.write(tmp_path / "rounds", look, None)
    held_out: list[str] = []
    for round_ in rounds.read(tmp_path / "rounds"):
        tables = {name: pq.read_table(path) for name, path in round_.data().items()}
        assert {name: tables[name].num_rows for name in NAMES} == round_.rows
        texts = [set(tables[name].column("text").to_pylist()) for name in NAMES]
        assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
        known = set(tables["train"].column("label").to_pylist())
        assert all(known.issuperset(tables[name].column("label").to_pylist()) for name in NAMES)
        held_out += tables["test"].column("text").to_pylist()
    assert len(held_out) == len(set(held_out)) > 0.5 * sum(round_.rows.values())
    tested = pq.read_table(look.folder / "test.parquet").column("text").to_pylist()
    assert not set(held_out) & set(tested)


@pytest.mark.slow
@pytest.mark.parametrize("make", [classes, several, numbers, tags])
def test_every_kind_of_label_ends_with_a_model_that_predicts(make, tmp_path, checkpoint):
    data, output = make(tmp_path), tmp_path / "advice"
    advice = headstart.advise(data, model=checkpoint("bert"), minutes=0, output=output, quiet=True)
    assert advice.table[0]["method"] == "majority" and advice.manifest["chosen"] in advice.recommendation
    text = ["the", "red", "sea"] if make is tags else "the red sea"
    assert len(advice.model.predict([text, text])) == 2
    before = {path: path.stat().st_mtime_ns for path in (output / "cells").rglob("*")}
    # A page of an earlier version has other keys, and is written again from the cells.
    earlier = {"ladder": advice.manifest["methods"], "chosen_model": advice.manifest["chosen_model"]}
    (output / "advice.json").write_text(json.dumps(earlier), encoding="utf-8")
    again = headstart.advise(data, model=checkpoint("bert"), minutes=0, output=output, quiet=True)
    assert again.summary() == advice.summary()
    assert {path: path.stat().st_mtime_ns for path in (output / "cells").rglob("*")} == before
    with pytest.raises(ArtifactError, match="contains advice with another label"):
        headstart.advise(data, label="tags" if make is tags else "label", model=checkpoint("bert"), output=output)


def test_too_few_rows_for_rounds_are_refused(tmp_path, checkpoint):
    # Every class but one has a single row left after testing, and that row must be trained on.
    rows = [(sentence("red"), "red")] * 4 + [(sentence(name), name) for name in "abcdefgh"]
    for _ in range(2):
        rows.append((sentence("red"), "blue"))  # a corrected file may use the folder
        with pytest.raises(DataError, match="validation"):
            headstart.advise(write(tmp_path / "rows.csv", rows), model=checkpoint("bert"), output=tmp_path / "advice")


def test_a_folder_with_other_files_and_a_missing_file_are_refused(tmp_path, checkpoint):
    (tmp_path / "advice").mkdir()
    (tmp_path / "advice" / "thesis.tex").touch()
    with pytest.raises(ArtifactError, match="do not belong to `headstart advise`"):
        headstart.advise(classes(tmp_path), model=checkpoint("bert"), output=tmp_path / "advice")
    with pytest.raises(DataError, match=r"there is no file .*none\.csv"):
        headstart.advise(tmp_path / "none.csv")


def row(method: str, **values) -> dict:
    lead = {"difference": 0.02, "low": -0.01, "high": 0.05, "p": 0.2}
    return {
        "method": method, "rate": None, "score": 0.8, "low": 0.75, "high": 0.85, "rows": 100, "rounds": 3,
        "seconds": 90.0, "kwh": None, "money": 0.0, "currency": "USD", "milliseconds": None, "megabytes": None,
        "adaptation": "", "adapted": [], "teacher": None,
        "is_network": True, "compared_with": "svm", "lead": lead, "tried": {}, "note": "", "over_chosen": lead,
        **values,
    }  # fmt: skip


def advice(**values) -> dict:
    test = [{"method": "full", "score": 0.78, "low": 0.7, "high": 0.86}]
    return {
        "data": "<b>rows.csv</b>: 140 labeled rows", "warnings": ["a | b"], "left_out": {}, "checkpoint": "folder",
        "splits": {"train": 100}, "metric": "accuracy", "methods": [row("svm", is_network=False), row("full")],
        "chosen": "full", "best": "full", "stopped": "All methods were tried.", "not_tried": [],
        "seconds": {"budget": 600.0, "spent": 90.0}, "cost": {}, "opened_for": ["full"],
        "chosen_model": {"milliseconds": 12.0, "megabytes": 90.0}, "test": {"rows": 40, "scores": test},
        "curve": {
            "method": "svm", "rows": 100, "more": 100, "gain": {"value": 0.018, "low": 0.006, "high": 0.03},
            "points": [{"rows": n, "round": 0, "score": 0.7} for n in (25, 50, 100)],
            "fitted": [{"rows": n, "score": 0.7, "low": 0.6, "high": 0.8} for n in (25, 50, 100, 200)],
        }, **values,
    }  # fmt: skip


def test_the_page_says_what_was_bought_and_escapes_what_came_from_the_data():
    text, markup = page.markdown(advice()), page.html(advice())
    assert "100 more training labels would buy about +1.8 points (+0.6 to +3.0, 90 % band)" in text
    assert "full bought +2.0 points (-1.0 to +5.0, p = 0.200) over svm for 1.5 min." in text
    behind = {"difference": -0.02, "low": -0.05, "high": 0.01, "p": 0.2}
    assert "full bought nothing: -2.0 points" in page.markdown(advice(methods=[row("svm"), row("full", lead=behind)]))
    assert r"\<b>rows.csv" in text and "&lt;b&gt;rows.csv" in markup and "<b>rows" not in markup
    assert page.RULE in text and markup.count("<figure") == 2


def test_the_page_says_what_adapting_to_the_corpus_bought():
    lead = {"difference": 0.004, "low": -0.005, "high": 0.013, "p": 0.4}
    adapted = row("adapt_first", adaptation="lora", compared_with="lora", lead=lead, adapted=[120, 0, 240])
    values = advice(methods=[row("lora"), row("full"), adapted])
    text = page.markdown(values)
    assert "adapting to your text bought +0.4 points (-0.5 to +1.3, p = 0.400) over lora for 1.5 min" in text
    assert "the probe kept the checkpoint as it was in 1 of 3 rounds" in text
    assert page.methods_table(values)[1][-1][0] == "adapt_first + lora"


def test_the_page_says_what_distillation_bought():
    student = row("distillation", compared_with="contrast", teacher="contrast")
    text = page.markdown(advice(methods=[row("contrast"), row("full"), student]))
    assert "distillation from contrast onto your text bought +2.0 points (-1.0 to +5.0, p = 0.200)" in text


@pytest.mark.slow
def test_a_student_learns_from_the_best_network_and_its_recipe_says_how(tmp_path, checkpoint):
    """An adapter teaches as a merged model; each round trains one teacher, whose cost is part of the cell."""
    output = tmp_path / "advice"
    (tmp_path / "more.txt").write_text("\n\n".join(sentence(color) for color in COLORS * 20), encoding="utf-8")
    look = init.run(classes(tmp_path), init.InitOptions(model=str(checkpoint("bert")), output=output / "data"))
    rounds.write(output / "rounds", look, None)
    base = config.load(output / "data" / "finetune.yaml", FinetuneRecipe)
    path, count = texts.write(output, [tmp_path / "more.txt"], texts.column_of(base), 40)
    assert count == pq.read_table(path).num_rows == 40
    base = base.model_copy(update={"training": base.training.model_copy(update={"budget": "2 epochs"})})
    cells = Cells(output, base, rounds.read(output / "rounds"), 1)
    lora = next(method for method in METHODS if method.name == "lora")
    method = distilling(lora, 1e-3, base, path, count, cells.rounds[0].rows["train"])
    first, again = cells.run(method, 1e-3, 0), cells.run(method, 1e-3, 0)
    assert len(first.predictions) == cells.rounds[0].rows["test"] and first.is_new
    assert not again.is_new and again.seconds == pytest.approx(first.seconds)
    (teacher,) = (output / "teachers").iterdir()
    assert first.cost.seconds > artifact.read_manifest(teacher)["cost"]["seconds"]
    tried = TriedMethod(method, 1e-3, {0: first}, {1e-3: {0: first}})
    outcome = SearchResult([tried], tried, tried, "", [])
    final.write_recipes(output, outcome, base)
    recipe = (output / "recipes" / "distillation.yaml").read_text(encoding="utf-8")
    assert "lora.yaml seeds=1 output=runs/advice-teacher adaptation.merge=true" in recipe and "${here}/../un" in recipe
    folder = final.train(output, outcome, base, quiet=True)
    assert final.score_test_rows(folder, "distillation")["scores"][0]["method"] == "distillation"
    assert len(FinetuneRun(folder).predict(["the red sea"])) == 1


def test_the_page_admits_a_better_baseline_and_a_test_set_that_was_opened_twice():
    lines = "\n".join(page.sentences(advice(best="svm", opened_for=["lora", "full"])))
    assert "No network is better than svm, which leads by +2.0 points" in lines
    assert "scored for 2 choices (lora, full)" in lines
    assert "no learning curve over labels: too short" in "\n".join(
        page.sentences(advice(curve={"reason": "too short"}))
    )
