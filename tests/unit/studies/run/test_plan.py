"""The plan of a study and its forecast."""

from __future__ import annotations

import json

from headstart.core import artifact, config
from headstart.stages.finetune.result import RESULT
from headstart.studies.definition import Study
from headstart.studies.graph import cell_dir
from headstart.studies.run import plan as study_plan


def study_of(tmp_path):
    finetune = {
        "model": f"{tmp_path}/nowhere", "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {"train": f"{tmp_path}/no.csv", "validation": 10, "test": f"{tmp_path}/no.csv"}, "adaptation": "full",
    }  # fmt: skip
    made = {"question": "Why?", "output": str(tmp_path / "out"), "base": {"finetune": finetune}, "baselines": ["svm"]}
    return config.fill(Study, made)


def test_cells_without_a_forecast_are_not_called_finished(tmp_path):
    text = study_plan.render(study_plan.run(study_of(tmp_path)))
    assert "no forecast: there is no file" in text or "no forecast: model is" in text
    assert text.endswith("forecast    none: 5 cells without a forecast")
    assert f"missing     {tmp_path}/no.csv, read by 10 cells" in text


def test_each_method_is_logged_before_it_is_timed(tmp_path, caplog):
    with caplog.at_level("INFO", "headstart"):
        study_plan.run(study_of(tmp_path))
        assert "study plan: 1 of 2, full on" in caplog.text
        caplog.clear()
        study_plan.run(study_of(tmp_path), quiet=True)
        assert not caplog.text


def test_the_budget_counts_the_time_spent(tmp_path):
    study = study_of(tmp_path).model_copy(update={"budget_hours": 1.0})
    nodes = [node for node in study_plan.build(study).nodes.values() if node.kind == "finetune"]
    for node in nodes[:3]:
        with artifact.staged(cell_dir(study.output, node.id), "cell of a study") as staging:
            (staging / RESULT).write_text(json.dumps({"cost": {"tokens": 7, "flops": 2.0, "seconds": 1000.0}}))
    assert "1 h, 0.8 h of it spent: 0.4 h too little" in study_plan.render(study_plan.run(study))


def test_numbers_of_rows_are_interpolated_between_the_smallest_and_all(tmp_path, monkeypatch):
    rows = "text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(110))
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(rows.replace("row", name), encoding="utf-8")
    sections = study_of(tmp_path).model_dump()
    sections["base"]["finetune"]["data"] = {
        "train": f"{tmp_path}/train.csv",
        "validation": 10,
        "test": f"{tmp_path}/test.csv",
    }
    sections["axes"] = {"labels": {"finetune.data.train_rows": [20, 60, None]}}
    seconds = {20: 2.0, None: 10.0}

    def forecast(recipe):
        cost = {"tokens": 1, "flops": 1.0, "seconds": seconds[recipe.data.train_rows], "money": 0.0}
        return {"forecast": cost}

    monkeypatch.setattr(study_plan.forecast, "run", forecast)
    made = study_plan.run(config.fill(Study, {**sections, "seeds": 1}))
    assert made.tag is not None and made.tag.seconds == 2.0 + 6.0 + 10.0, "60 is half-way between 20 and 100"


def test_a_seed_costs_as_much_as_the_finished_ones(tmp_path):
    """Its model and its rows do not exist, so nothing could be timed."""
    study = study_of(tmp_path)
    first = next(node for node in study_plan.build(study).nodes.values() if node.kind == "finetune")
    with artifact.staged(cell_dir(study.output, first.id), "cell of a study") as staging:
        (staging / RESULT).write_text(json.dumps({"cost": {"tokens": 7, "flops": 2.0, "seconds": 90.0}}))
    made = study_plan.run(study)
    assert made.tag is not None and (made.tag.seconds, made.tag.tokens) == (4 * 90.0, 4 * 7)
    assert made.without_forecast == 0


def test_pretrainings_that_differ_by_seed_are_one_line(tmp_path):
    """Each pre-training has another folder, and so has each fine-tuning another model."""
    (tmp_path / "text.txt").write_text("In the beginning\n\nGod created", encoding="utf-8")
    sections = study_of(tmp_path).model_dump()
    sections["base"]["pretrain"] = {
        "corpus": {"files": [f"{tmp_path}/text.txt"]}, "backbone": {"family": "encoder"}, "objective": "masked_lm"
    }  # fmt: skip
    del sections["base"]["finetune"]["model"]
    sections["base"]["finetune"]["task"] = {"kind": "embed", "texts": ["a", "b"], "label": "score"}
    sections["axes"] = {"method": {name: {"finetune.adaptation": {"name": name}} for name in ("full", "zero_shot")}}
    made = study_plan.run(config.fill(Study, {**sections, "seeds": 3, "seed_pretraining": True, "overlap": False}))
    assert [(item.name.split(" on ")[0], item.cells) for item in made.items if "svm" not in item.name] == [
        ("prepare masked_lm", 3), ("pretrain masked_lm", 3), ("full", 3), ("zero_shot", 3)
    ]  # fmt: skip
    (note,) = {item.note for item in made.items if item.name.startswith("zero_shot")}
    assert note == "trains nothing, seconds to minutes each"
