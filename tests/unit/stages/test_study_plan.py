"""A study's plan says what it cannot foresee."""

from __future__ import annotations

import json

from headstart.core import artifact, config
from headstart.stages import study_plan
from headstart.stages.study_cells import RESULT
from headstart.studies.definition import Study
from headstart.studies.graph import home


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


def test_a_seed_costs_what_its_siblings_did(tmp_path):
    """Its model and its rows are gone, so nothing could be timed."""
    study = study_of(tmp_path)
    first = next(node for node in study_plan.build(study).nodes.values() if node.kind == "finetune")
    with artifact.staged(home(study.output, first.id), "cell of a study") as staging:
        (staging / RESULT).write_text(json.dumps({"cost": {"tokens": 7, "flops": 2.0, "seconds": 90.0}}))
    made = study_plan.run(study)
    assert made.tag is not None and (made.tag.seconds, made.tag.tokens) == (4 * 90.0, 4 * 7)
    assert made.unforeseen == 0
