"""The recipe of `headstart finetune`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from headstart.core import config, registry
from headstart.core.config import AdaptationSection, Section, TaskSection
from headstart.core.errors import RecipeError
from headstart.evaluation.cost import CostConfig
from headstart.training.settings import TrainingSettings


class LabelledData(Section):
    """Which files hold the labelled rows, and how many of them are used."""

    train: str
    validation: str | int = Field(description="a file, or a number of rows to take out of train")
    test: str
    train_rows: int | None = Field(
        None, ge=2, description="training rows to use, drawn anew by each seed; all by default"
    )
    test_rows: int | None = Field(None, ge=1, description="test rows to use, the same for every seed; all by default")


class FinetuneTraining(TrainingSettings):
    """The loop's settings, and how large batches are."""

    budget: str = Field(
        "10 epochs", description="as in pre-training; with few labels 20 epochs are steadier (Mosbach et al. 2021)"
    )
    learning_rate: float = Field(5e-4, gt=0, le=1)
    warmup_ratio: float = Field(
        0.1, ge=0, lt=1, description="share of the budget over which the rate rises; 0.1 steadies (Mosbach et al. 2021)"
    )
    batch_size: int = Field(32, ge=1)
    max_length: int = Field(128, ge=8, description="longer texts are cut")


class FinetuneRecipe(Section):
    """A whole fine-tuning run: one method over several seeds, and its company."""

    verb: ClassVar[str] = "finetune"

    seed: int = Field(0, description="the first seed")
    seeds: int = Field(3, ge=1, description="how many seeds; the interval needs two or more")
    output: Path
    model: str = Field(description="any local Hugging Face folder")
    task: TaskSection
    data: LabelledData
    adaptation: AdaptationSection
    compare_with: list[str | dict[str, Any]] = Field(
        ["majority", "svm", "scratch"], description="baselines and adaptations that are run beside, for comparison"
    )
    forgetting: bool | str = Field(
        False,
        description="true: tell what each method did to the loss of pre-training, for a checkpoint of ours; a file of "
        "sentence1, sentence2 and score: to the agreement of its cosines with those scores, for any",
    )
    training: FinetuneTraining = FinetuneTraining()
    cost: CostConfig = CostConfig()

    @field_validator("compare_with")
    @classmethod
    def _known(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        known = [*registry.names("baselines"), *registry.names("adaptations")]
        for entry in value:
            name = entry if isinstance(entry, str) else str(entry.get("name"))
            if name not in known:
                hint = registry.suggest(name, known) or ";"
                raise ValueError(f"{name!r} is neither a baseline nor an adaptation{hint} known: {', '.join(known)}.")
        names = [entry if isinstance(entry, str) else entry["name"] for entry in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"company names {twice!r} twice; a run has one method of a name, a study may have more.")
        return value

    @model_validator(mode="after")
    def _apart(self) -> FinetuneRecipe:
        # A section at fault is told of elsewhere, and stands here as nothing.
        chosen = getattr(self.adaptation, registry.SELECTOR["adaptations"], None)
        for entry in self.compare_with:
            if isinstance(entry, dict) and entry["name"] == chosen and len(entry) > 1:
                raise ValueError(
                    f"company has settings for {chosen!r}, which is the adaptation itself; a run has one method of a "
                    "name, a study may have more."
                )
        return self


def methods_of(recipe: FinetuneRecipe) -> Iterator[tuple[str, Section | None]]:
    """Yield (name, section) of the chosen adaptation and its company; a baseline has no section."""
    yield recipe.adaptation.name, recipe.adaptation  # type: ignore[attr-defined]
    for entry in recipe.compare_with:
        settings = {"name": entry} if isinstance(entry, str) else entry
        name = settings["name"]
        if name == recipe.adaptation.name:  # type: ignore[attr-defined]
            continue
        if name in registry.names("baselines"):
            yield name, None
        else:
            faults: list[str] = []
            section = config.choose("adaptations", "compare_with", settings, faults)
            if section is None:
                raise RecipeError(" ".join(faults))
            yield name, section


def settings_of(training: TrainingSettings, section: Section) -> TrainingSettings:
    """Return the training settings with what the adaptation sets for itself."""
    shared = type(section).model_fields.keys() & type(training).model_fields.keys()
    own = {name: getattr(section, name) for name in shared if getattr(section, name) is not None}
    try:
        return type(training).model_validate({**training.model_dump(), **own})
    except ValueError as error:
        name = getattr(section, registry.SELECTOR["adaptations"])
        raise RecipeError(
            f"{name}.budget is {own.get('budget')!r}",
            allowed="A budget is an amount and a unit: 30 min, 10M tokens, 2000 steps, 3 epochs, 1e15 flops",
            do=f"Mend the budget of {name}",
        ) from error
