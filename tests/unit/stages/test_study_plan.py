"""A study's plan says what it cannot foresee."""

from __future__ import annotations

from headstart.core import config
from headstart.stages import study_plan
from headstart.studies.definition import Study


def test_cells_that_are_not_foreseen_are_not_called_done(tmp_path):
    finetune = {
        "model": f"{tmp_path}/nowhere", "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {"train": f"{tmp_path}/no.csv", "validation": 10, "test": f"{tmp_path}/no.csv"}, "adaptation": "full",
    }  # fmt: skip
    made = {"question": "Why?", "output": str(tmp_path / "out"), "base": {"finetune": finetune}, "baselines": ["svm"]}
    said = study_plan.render(study_plan.run(config.fill(Study, made)))
    assert "not foreseen: there is no file" in said or "not foreseen: model is" in said
    assert said.endswith("forecast    none: 5 cells are not foreseen")
