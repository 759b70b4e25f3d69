"""The methods, cheapest first, and the recipe of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.core import config
from headstart.core.config import Section
from headstart.stages.finetune.recipe import AdaptFirst, FinetuneRecipe
from headstart.training.budget import Budget

ADAPT_FIRST = "adapt_first"
"""The name of the method that pre-trains the checkpoint on unlabeled text first."""
DISTILLATION = "distillation"
"""The name of the method that learns what the best network predicts for unlabeled texts."""
_FORWARD_AND_BACKWARD = 3
"""A training step costs about three times as much as a prediction of the same rows."""


@dataclass(frozen=True)
class Teacher:
    """The network whose predictions a method learns, and the unlabeled texts that it predicts."""

    method: Method
    rate: float | None
    texts: Path
    """A file with the text column of the task."""
    count: int
    """The number of texts in the file."""
    epochs: int
    """The budget of the student; an epoch has every labeled row and every text once."""


@dataclass(frozen=True)
class Method:
    """One method that can be tried."""

    name: str
    """A baseline or an adaptation of the registry, or `adapt_first`."""
    is_network: bool = True
    """Networks can be saved, served and exported; baselines are only compared with."""
    is_trained: bool = False
    """Trained by gradient descent, which takes minutes. The other methods take seconds."""
    rates: tuple[float, ...] = ()
    """Candidate learning rates, as multiples of the recipe's; the first is tried first."""
    epochs: float = 1.0
    """The budget, as a multiple of the recipe's epochs."""
    evaluations: int | None = None
    """Evaluations on the validation rows during training; by default those of the recipe."""
    refits: bool = False
    """Every evaluation also runs the training rows, to fit the head to their vectors."""
    adaptation: str = ""
    """The adaptation of the registry, where the method has another name."""
    adapt_first: AdaptFirst | None = None
    """The pre-training on unlabeled text before it, which all cells of the method share."""
    teacher: Teacher | None = None
    """The network that it learns from, besides the labels; each cell trains it first."""

    @property
    def extends_best(self) -> bool:
        """Return True for a method that starts from the best network, with which it is compared."""
        return self.adapt_first is not None or self.teacher is not None

    @property
    def adapting_seconds(self) -> float:
        """Return the budget of the pre-training."""
        return 0.0 if self.adapt_first is None else Budget.parse(self.adapt_first.budget).amount


METHODS = (
    Method("majority", is_network=False),
    Method("svm", is_network=False),
    Method("static", is_network=False),
    Method("linear_probe"),
    Method("contrast", is_trained=True, rates=(1.0, 0.3), epochs=0.5, evaluations=2, refits=True),
    # LoRA needs about twenty times the rate of full fine-tuning (docs/lab-notes.md).
    Method("lora", is_trained=True, rates=(20.0, 6.0, 60.0)),
    Method("full", is_trained=True, rates=(1.0, 0.3, 3.0)),
)


def adapting_first(method: Method, rate: float | None, base: FinetuneRecipe, section: AdaptFirst) -> Method:
    """Return the method that pre-trains the checkpoint first and is then `method` with its selected learning rate."""
    rates = () if rate is None else (rate / base.training.learning_rate,)
    return replace(method, name=ADAPT_FIRST, adaptation=method.name, rates=rates, adapt_first=section)


def distilling(best: Method, rate: float | None, base: FinetuneRecipe, texts: Path, count: int, train: int) -> Method:
    """Return the method whose student reads about as many rows as `full`: the labeled rows, and the texts.

    Args:
        best: the teacher.
        rate: its selected learning rate.
        base: the recipe that all methods start from.
        texts: the unlabeled texts.
        count: how many there are.
        train: the number of labeled rows.
    """
    rows = train * max(1, round(Budget.parse(base.training.budget).amount))
    epochs = max(1, round(rows / (train + count)))
    return Method(
        DISTILLATION, is_trained=True, rates=(1.0,), evaluations=2, teacher=Teacher(best, rate, texts, count, epochs)
    )


def candidate_rates(method: Method, base: FinetuneRecipe) -> list[float | None]:
    """Return the learning rates to try; a method that is not trained has none, which is one candidate."""
    return [float(f"{factor * base.training.learning_rate:.1g}") for factor in method.rates] or [None]


def epochs_of(method: Method, base: FinetuneRecipe) -> int:
    """Return the epochs that a method is trained for."""
    if method.teacher is not None:
        return method.teacher.epochs
    return max(1, round(method.epochs * Budget.parse(base.training.budget).amount))


def recipe_of(
    method: Method, rate: float | None, base: FinetuneRecipe, data: Mapping[str, Any], teacher: str | None = None
) -> dict[str, Any]:
    """Return a fine-tuning recipe of a network for one seed, without other methods, as plain values.

    `teacher` is the folder of the trained teacher, for a method that has one.
    """
    training, task = (_given(section) for section in (base.training, base.task))
    adaptation: dict[str, Any] = {"name": method.adaptation or method.name}
    if method.is_trained:
        training["budget"] = f"{epochs_of(method, base)} epochs"
        training["eval_count"] = method.evaluations or base.training.eval_count
        adaptation["learning_rate"] = rate
    if method.teacher is not None:
        adaptation |= {"teacher": teacher, "texts": str(method.teacher.texts)}
    first = {} if method.adapt_first is None else {"adapt_first": _given(method.adapt_first)}
    return {
        "seed": 0, "seeds": 1, "output": "cell", "model": base.model, "task": task, "data": dict(data), **first,
        "adaptation": adaptation, "compare_with": [], "training": training,
    }  # fmt: skip


def teacher_recipe(
    teacher: Teacher, base: FinetuneRecipe, data: Mapping[str, Any], output: Path, seed: int
) -> dict[str, Any]:
    """Return the recipe that trains a teacher as a whole model, which a student can load."""
    recipe = recipe_of(teacher.method, teacher.rate, base, data)
    if recipe["adaptation"]["name"] == "lora":
        recipe["adaptation"]["merge"] = True
    return {**recipe, "seed": seed, "output": str(output)}


def _given(section: Section) -> dict[str, Any]:
    """Return the settings of a section that its recipe sets; the others have their defaults."""
    return {name: value for name, value in config.to_dict(section).items() if name in section.model_fields_set}


def row_passes(method: Method, base: FinetuneRecipe, train: int, validation: int, test: int) -> float:
    """Return how many rows a run reads, in forward passes, to forecast its time from that of another method."""
    if not method.is_trained:
        return train + 2 * validation + test
    evaluations = method.evaluations or base.training.eval_count
    if method.teacher is not None:
        # The teacher predicts every row of every batch; its own training is forecast apart.
        train += method.teacher.count
        return (_FORWARD_AND_BACKWARD + 1) * epochs_of(method, base) * train + evaluations * validation + test
    steps = _FORWARD_AND_BACKWARD * epochs_of(method, base) * train
    return steps + evaluations * (validation + method.refits * train) + test
