"""The recipe class of each verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headstart.core import config
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import RECIPE
from headstart.stages.search.recipe import IndexRecipe
from headstart.studies.definition import Study


def by_verb() -> dict[str, type[BaseModel]]:
    """Return the recipe class of each verb that takes a recipe."""
    return {recipe.verb: recipe for recipe in (CorpusRecipe, PretrainRecipe, FinetuneRecipe, IndexRecipe, Study)}


def verb_of(raw: Mapping[str, Any]) -> str:
    """Return the verb of a recipe, which its sections determine: `objective` means pretrain, `task` means finetune."""
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
        f"the recipe belongs to no verb; its sections are {', '.join(raw) or 'none'}",
        allowed="A corpus recipe has `sources`, a pretrain recipe an `objective`, a finetune recipe a `task`, "
        "an index recipe `passages`, a study a `question`",
    )


def load(recipe: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Any:
    """Read and validate a recipe of any verb (a file or a dictionary)."""
    raw = config.apply_overrides(recipe if isinstance(recipe, dict) else config.parse(config.find(recipe)), overrides)
    return config.fill(by_verb()[verb_of(raw)], raw)


def recipe_of_run(folder: Path) -> Any:
    """Return the filled recipe in the output folder of a run."""
    path = folder / RECIPE
    if not path.is_file():
        raise ArtifactError(f"`{folder}` is not a run folder (no {RECIPE})", do="Pass the `output` folder of a recipe")
    raw = config.parse(path)
    return config.fill_saved(by_verb()[verb_of(raw)], raw, str(path))
