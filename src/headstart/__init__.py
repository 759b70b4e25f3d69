"""Headstart: pre-train a language model once, fine-tune it many times, know what each step bought and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__version__ = "0.1.0"


def corpus(recipe: str | Path | dict[str, Any], *overrides: str, quiet: bool = False) -> Path:
    """Build a corpus by a recipe (a file or a dictionary) and return its folder."""
    from headstart.stages.corpus import run as stage
    from headstart.stages.corpus.recipe import CorpusRecipe

    return stage.run(_recipe(recipe, CorpusRecipe, overrides), quiet)


def pretrain(recipe: str | Path | dict[str, Any], *overrides: str, quiet: bool = False) -> Path:
    """Pre-train by a recipe (a file or a dictionary) and return the checkpoint's folder."""
    from headstart.stages.pretrain import run as stage
    from headstart.stages.pretrain.recipe import PretrainRecipe

    return stage.run(_recipe(recipe, PretrainRecipe, overrides), quiet)


def finetune(recipe: str | Path | dict[str, Any], *overrides: str, quiet: bool = False) -> Path:
    """Fine-tune by a recipe (a file or a dictionary) and return the model's folder."""
    from headstart.stages.finetune import run as stage
    from headstart.stages.finetune.recipe import FinetuneRecipe

    return stage.run(_recipe(recipe, FinetuneRecipe, overrides), quiet)


def plan(recipe: str | Path | dict[str, Any], *overrides: str) -> dict[str, Any]:
    """Forecast what a recipe will cost, from a few steps timed on this machine."""
    from headstart import verbs
    from headstart.stages.plan import forecast as stage

    return stage.run(verbs.load(recipe, overrides))


def evaluate(model: str | Path, data: str | Path) -> dict[str, Any]:
    """Score a finished model on labelled rows, or a pre-trained one on raw text."""
    from headstart.stages import evaluate as stage

    return stage.run(Path(model), Path(data))


def generate(model: str | Path, *prompts: str, **settings: Any) -> list[dict[str, Any]]:
    """Continue prompts or fill their blanks (`___`); settings are those of `headstart generate`."""
    from headstart.core import config
    from headstart.stages import generate as stage

    return stage.run(Path(model), prompts, config.fill(stage.GenerateSettings, settings, "generate"))


def index(recipe: str | Path | dict[str, Any], *overrides: str, quiet: bool = False) -> Path:
    """Build an index of passages by a recipe (a file or a dictionary) and return its folder."""
    from headstart.stages.search import index as stage

    return stage.run(_recipe(recipe, stage.IndexRecipe, overrides), quiet)


def search(index: str | Path, *questions: str, count: int = 5) -> list[dict[str, Any]]:
    """Return for each question the passages of an index that are nearest to it."""
    from headstart.stages.search import query as stage

    return stage.run(Path(index), questions, count)


def study(definition: str | Path | dict[str, Any], *overrides: str, quiet: bool = False) -> Path:
    """Run the missing cells of a study (a file or a dictionary) and return its folder, tables included."""
    from headstart.studies import study as stage
    from headstart.studies.definition import Study

    filled: Study = _recipe(definition, Study, overrides)
    stage.run(filled, quiet)
    return filled.output


def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Verify a finished artifact and load its model and tokenizer as plain transformers objects."""
    from headstart.stages import evaluate as stage

    return stage.load(Path(path))


def _recipe(recipe: str | Path | dict[str, Any], model: Any, overrides: tuple[str, ...]) -> Any:
    from headstart.core import config

    if isinstance(recipe, dict):
        return config.fill(model, config.apply_overrides(recipe, overrides))
    return config.load(recipe, model, overrides)
