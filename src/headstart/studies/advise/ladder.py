"""The ladder of methods, cheapest first, and the recipe of each rung."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.core import config
from headstart.core.config import Section
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.training.budget import Budget

_FORWARD_AND_BACKWARD = 3
"""A training step costs about three times as much as a prediction of the same rows."""


@dataclass(frozen=True)
class Rung:
    """One method of the ladder."""

    name: str
    """A baseline or an adaptation of the registry."""
    is_network: bool = True
    """Networks can be saved, served and exported; baselines are only compared with."""
    is_trained: bool = False
    """Trained by gradient descent, which takes minutes. The other rungs take seconds."""
    rates: tuple[float, ...] = ()
    """Candidate learning rates, as multiples of the recipe's; the first is tried first."""
    epochs: float = 1.0
    """The budget, as a multiple of the recipe's epochs."""
    evaluations: int | None = None
    """Evaluations on the validation rows during training; by default those of the recipe."""
    refits: bool = False
    """Every evaluation also runs the training rows, to fit the head to their vectors."""


LADDER = (
    Rung("majority", is_network=False),
    Rung("svm", is_network=False),
    Rung("static", is_network=False),
    Rung("linear_probe"),
    Rung("contrast", is_trained=True, rates=(1.0, 0.3), epochs=0.5, evaluations=2, refits=True),
    # LoRA needs about twenty times the rate of full fine-tuning (docs/lab-notes.md).
    Rung("lora", is_trained=True, rates=(20.0, 6.0, 60.0)),
    Rung("full", is_trained=True, rates=(1.0, 0.3, 3.0)),
)


def candidate_rates(rung: Rung, base: FinetuneRecipe) -> list[float | None]:
    """Return the learning rates to try; a rung that is not trained has none, which is one candidate."""
    return [float(f"{factor * base.training.learning_rate:.1g}") for factor in rung.rates] or [None]


def epochs_of(rung: Rung, base: FinetuneRecipe) -> int:
    """Return the epochs that a rung is trained for."""
    return max(1, round(rung.epochs * Budget.parse(base.training.budget).amount))


def recipe_of(rung: Rung, rate: float | None, base: FinetuneRecipe, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fine-tuning recipe of a network rung for one seed, without other methods, as plain values."""
    training, task = (_given(section) for section in (base.training, base.task))
    adaptation: dict[str, Any] = {"name": rung.name}
    if rung.is_trained:
        training["budget"] = f"{epochs_of(rung, base)} epochs"
        training["eval_count"] = rung.evaluations or base.training.eval_count
        adaptation["learning_rate"] = rate
    return {
        "seed": 0, "seeds": 1, "output": "cell", "model": base.model, "task": task, "data": dict(data),
        "adaptation": adaptation, "compare_with": [], "training": training,
    }  # fmt: skip


def _given(section: Section) -> dict[str, Any]:
    """Return the settings of a section that its recipe sets; the others have their defaults."""
    return {name: value for name, value in config.to_dict(section).items() if name in section.model_fields_set}


def row_passes(rung: Rung, base: FinetuneRecipe, train: int, validation: int, test: int) -> float:
    """Return how many rows a run reads, in forward passes, to forecast its time from that of another rung."""
    if not rung.is_trained:
        return train + 2 * validation + test
    evaluations = rung.evaluations or base.training.eval_count
    steps = _FORWARD_AND_BACKWARD * epochs_of(rung, base) * train
    return steps + evaluations * (validation + rung.refits * train) + test
