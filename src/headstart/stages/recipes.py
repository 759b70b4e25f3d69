"""Which recipe belongs to which verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headstart.core.errors import RecipeError
from headstart.stages.corpus import CorpusRecipe
from headstart.stages.finetune import FinetuneRecipe
from headstart.stages.index import IndexRecipe
from headstart.stages.pretrain import PretrainRecipe
from headstart.studies.definition import Study


def by_verb() -> dict[str, type[BaseModel]]:
    """Return the recipe class of each verb that takes one."""
    return {recipe.verb: recipe for recipe in (CorpusRecipe, PretrainRecipe, FinetuneRecipe, IndexRecipe, Study)}


def verb_of(raw: Mapping[str, Any]) -> str:
    """Tell a recipe's verb by its sections: sources make a corpus, an objective is pre-trained, a task fine-tuned."""
    if "question" in raw:
        return "study"
    if "sources" in raw:
        return "corpus"
    if "objective" in raw:
        return "pretrain"
    if "task" in raw:
        return "finetune"
    if "passages" in raw:
        return "index"
    raise RecipeError(
        f"the recipe has the sections {', '.join(raw) or 'none'}",
        allowed="A corpus recipe has `sources`, a pretrain recipe an `objective`, a finetune recipe a `task`, "
        "an index recipe `passages`, a study a `question`",
    )
