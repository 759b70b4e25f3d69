"""The recipe class of each verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headstart.core import config
from headstart.core.errors import ArtifactError, RecipeError, shorten
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.multitask.recipe import MultitaskRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import RECIPE, VERB_BY_SECTION
from headstart.stages.search.recipe import IndexRecipe
from headstart.studies.definition import Study


def by_verb() -> dict[str, type[BaseModel]]:
    """Return the recipe class of each verb that takes a recipe."""
    kinds = (CorpusRecipe, PretrainRecipe, FinetuneRecipe, MultitaskRecipe, IndexRecipe, Study)
    return {recipe.verb: recipe for recipe in kinds}


def verb_of(raw: Mapping[str, Any]) -> str:
    """Return the verb of a recipe, which its sections determine: `objective` means pretrain, `task` means finetune."""
    verb = next((verb for section, verb in VERB_BY_SECTION.items() if section in raw), None)
    if verb is not None:
        return verb
    raise RecipeError(
        f"the recipe belongs to no verb; its sections are {shorten(', '.join(map(str, raw)), 200) or 'none'}",
        allowed="A corpus recipe has `sources`, a pretrain recipe an `objective`, a finetune recipe a `task`, "
        "a multitask recipe `tasks`, an index recipe `passages`, a study a `question`",
    )


def load(
    recipe: str | Path | dict[str, Any], overrides: Sequence[str] = (), parsed: dict[str, Any] | None = None
) -> Any:
    """Read and validate a recipe of any verb (a file or a dictionary); `parsed` is the content of the file."""
    if isinstance(recipe, dict):
        raw = config.apply_overrides(recipe, overrides)
        return config.fill(by_verb()[verb_of(raw)], raw)
    path = config.find(recipe)
    parsed = config.parse(path) if parsed is None else parsed
    return config.load(path, by_verb()[verb_of(config.apply_overrides(parsed, overrides))], overrides, parsed)


def recipe_of_run(folder: Path) -> Any:
    """Return the filled recipe in the output folder of a run."""
    path = folder / RECIPE
    if not path.is_file():
        raise ArtifactError(f"`{folder}` is not a run folder (no {RECIPE})", do="Pass the `output` folder of a recipe")
    raw = config.parse(path)
    return config.fill_saved(by_verb()[verb_of(raw)], raw, str(path))
