"""The score that selects among the weights of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headstart.stages.finetune import learner
from headstart.tasks.multi_label import MultiLabel

GOLD = [["a"], ["a"], ["b"], ["b"], ["a", "b"], ["b"]]


@pytest.mark.parametrize(
    ("settings", "score"),
    [({}, 0.0), ({"threshold": "tuned"}, 1.0), ({"threshold": "tuned", "temperature_scaling": True}, 1.0)],
)
def test_weights_are_scored_by_the_decisions_that_will_be_made(monkeypatch, settings, score):
    """All probabilities are below 0.5, but ordered correctly: at 0.5, such weights would look worthless."""
    task = MultiLabel(MultiLabel.Config(**settings))
    task.restore({"labels": ["a", "b"]})
    logits = [np.array([-1.0 if label in labels else -3.0 for label in ("a", "b")]) for labels in GOLD]
    monkeypatch.setattr(learner, "run_model", lambda *_: logits)
    rows: Any = SimpleNamespace(
        solve=lambda: None, model=None, task=task, validation=[{}] * len(GOLD), spec=None, gold=GOLD,
        module=SimpleNamespace(run=lambda function, *inputs: function(*inputs)),
    )  # fmt: skip
    assert learner.TaskLearner.validate(rows)["multi_label_macro_f1"] == pytest.approx(score)
