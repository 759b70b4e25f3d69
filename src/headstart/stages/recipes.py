"""Which recipe belongs to which verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headstart.core.errors import RecipeError
from headstart.stages.finetune import FinetuneRecipe
from headstart.stages.pretrain import PretrainRecipe


def by_verb() -> dict[str, type[BaseModel]]:
    """Return the recipe class of each verb that takes one."""
    return {"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}


def verb_of(raw: Mapping[str, Any]) -> str:
    """Tell a recipe's verb by its sections: an objective is pre-trained, a task fine-tuned."""
    if "objective" in raw:
        return "pretrain"
    if "task" in raw:
        return "finetune"
    raise RecipeError(
        f"the recipe has the sections {', '.join(raw) or 'none'}",
        allowed="A pretrain recipe has an `objective`, a finetune recipe a `task`",
    )
