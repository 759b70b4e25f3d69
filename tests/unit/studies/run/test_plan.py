"""A study's plan says what it cannot foresee."""

from __future__ import annotations

import json

from headstart.core import artifact, config
from headstart.studies.definition import Study
from headstart.studies.graph import home
from headstart.studies.run import plan as study_plan
from headstart.studies.run.jobs import RESULT


def study_of(tmp_path):
    finetune = {
        "model": f"{tmp_path}/nowhere", "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {"train": f"{tmp_path}/no.csv", "validation": 10, "test": f"{tmp_path}/no.csv"}, "adaptation": "full",
    }  # fmt: skip
    made = {"question": "Why?", "output": str(tmp_path / "out"), "base": {"finetune": finetune}, "baselines": ["svm"]}
    return config.fill(Study, made)


def test_cells_that_are_not_foreseen_are_not_called_done(tmp_path):
    said = study_plan.render(study_plan.run(study_of(tmp_path)))
    assert "not foreseen: there is no file" in said or "not foreseen: model is" in said
    assert said.endswith("forecast    none: 5 cells are not foreseen")
    assert f"not there   {tmp_path}/no.csv, which 10 cells read" in said


def test_what_is_timed_is_told_as_its_turn_comes(tmp_path, capsys):
    study_plan.run(study_of(tmp_path))
    assert "study plan: 1 of 2, full on" in capsys.readouterr().err
    study_plan.run(study_of(tmp_path), quiet=True)
    assert not capsys.readouterr().err


def test_the_budget_counts_what_is_spent(tmp_path):
    study = study_of(tmp_path).model_copy(update={"budget_hours": 1.0})
    nodes = [node for node in study_plan.build(study).nodes.values() if node.kind == "finetune"]
    for node in nodes[:3]:
        with artifact.staged(home(study.output, node.id), "cell of a study") as staging:
            (staging / RESULT).write_text(json.dumps({"cost": {"tokens": 7, "flops": 2.0, "seconds": 1000.0}}))
    assert "1 h of work, 0.8 h of it spent, is 0.4 h too little" in study_plan.render(study_plan.run(study))


def test_numbers_of_labels_lie_between_the_fewest_and_all_that_there_are(tmp_path, monkeypatch):
    rows = "text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(110))
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
    asked = study_of(tmp_path).model_dump()
    asked["base"]["finetune"]["data"] = {
        "train": f"{tmp_path}/train.csv",
        "validation": 10,
        "test": f"{tmp_path}/test.csv",
    }
    asked["axes"] = {"labels": {"finetune.data.train_rows": [20, 60, None]}}
    taken = {20: 2.0, None: 10.0}

    def forecast(recipe):
        seconds = taken[recipe["data"]["labels"]]
        return {"forecast": {"tokens": 1, "flops": 1.0, "seconds": seconds, "money": 0.0}}

    monkeypatch.setattr(study_plan.plan, "run", forecast)
    made = study_plan.run(config.fill(Study, {**asked, "seeds": 1}))
    assert made.tag is not None and made.tag.seconds == 2.0 + 6.0 + 10.0, "60 lie half-way between 20 and 100"


def test_a_seed_costs_what_its_siblings_did(tmp_path):
    """Its model and its rows are gone, so nothing could be timed."""
    study = study_of(tmp_path)
    first = next(node for node in study_plan.build(study).nodes.values() if node.kind == "finetune")
    with artifact.staged(home(study.output, first.id), "cell of a study") as staging:
        (staging / RESULT).write_text(json.dumps({"cost": {"tokens": 7, "flops": 2.0, "seconds": 90.0}}))
    made = study_plan.run(study)
    assert made.tag is not None and (made.tag.seconds, made.tag.tokens) == (4 * 90.0, 4 * 7)
    assert made.unforeseen == 0
