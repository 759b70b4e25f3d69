"""Score a finished model on other data: a fine-tuned one on labeled rows, a pre-trained one on raw text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headstart.core import artifact, config, registry
from headstart.core.contracts import Adaptation, Objective, Task
from headstart.core.data import Examples, InputColumn, InputSpec
from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.evaluation import metrics
from headstart.stages.finetune.learner import predict
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import assembled
from headstart.stages.runs import card, manifest
from headstart.stages.runs.manifest import ADAPTER, FinetuneManifest, PretrainManifest
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder, family_of, unwrap_peft, with_pad_token
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.training import precision
from headstart.training.compilation import choose_attention


def run(model: Path, data: Path) -> dict[str, Any]:
    """Verify the model's folder, score it on the data and return the scores by name."""
    facts = manifest.read_any(model)
    if isinstance(facts, FinetuneManifest):
        return _evaluate_rows(Finetuned(model, facts), data)
    return _evaluate_text(model, facts, data)


def load(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Verify an artifact and load it: with the transformers class in its config, or with peft if it is an adapter."""
    artifact.verify(path)
    return _load(path), AutoTokenizer.from_pretrained(str(path))


def predict_texts(folder: Path, texts: Sequence[Any]) -> list[Any]:
    """Verify a fine-tuned model and return one prediction per text.

    A task that reads several columns takes tuples of values, in the order of its columns.
    """
    facts = manifest.read_any(folder)
    if not isinstance(facts, FinetuneManifest):
        raise ArtifactError(f"{folder} is a {facts.KIND}", allowed="Predictions need an output of `headstart finetune`")
    return Finetuned(folder, facts).predict_texts(texts)


class Finetuned:
    """A verified fine-tuned model with its recipe and its task, as the run left them."""

    def __init__(self, folder: Path, facts: FinetuneManifest) -> None:
        """Restore the task; the weights are loaded at the first prediction."""
        self.folder = folder
        self.recipe, self.task = _recipe_and_task(folder, facts)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The network, on the default device."""
        model = _load(self.folder).to(precision.default_device())  # type: ignore[arg-type]
        choose_attention(model)
        return model

    @cached_property
    def spec(self) -> InputSpec:
        """How the network reads text."""
        tokenizer = with_pad_token(AutoTokenizer.from_pretrained(str(self.folder)))
        return InputSpec(tokenizer, family_of(unwrap_peft(self.model).config), self.recipe.training.max_length)

    def predict(self, rows: Examples) -> list[Any]:
        """Return one prediction per row, in the precision of the run."""
        with _autocast(self.recipe, self.model):
            return predict(self.model, self.task, self.task.encode(rows, self.spec), self.spec)

    def predict_texts(self, texts: Sequence[Any]) -> list[Any]:
        """Return one prediction per text; a task that reads several columns takes tuples."""
        return self.predict(_unlabeled(self.task, texts))


def _load(folder: Path) -> PreTrainedModel:
    if (folder / ADAPTER).is_file():
        return _load_adapter(folder).eval()
    registry.import_network(folder)
    architecture = transformers.AutoConfig.from_pretrained(str(folder)).architectures[0]
    # transformers exports no class of Headstart's own networks, but its auto classes know them.
    loader = getattr(transformers, architecture, None) or getattr(transformers, card.loaded_by(architecture)[0])
    return loader.from_pretrained(str(folder), dtype=torch.float32).eval()  # type: ignore[no-any-return]


def _load_adapter(folder: Path) -> PreTrainedModel:
    """Load the checkpoint that an adapter was trained on, and put the adapter on it."""
    facts = FinetuneManifest.read(folder)
    recipe, task = _recipe_and_task(folder, facts)
    source = CheckpointFolder(recipe.model, task, facts.seed)
    if artifact.identity(source.path) != facts.parents.get("model"):
        raise ArtifactError(
            f"{source.path} is not the checkpoint that the adapter in {folder} was trained on",
            allowed="An adapter works only with the weights that it was trained on",
            do="Restore that checkpoint, or fine-tune again",
        )
    adaptation: Adaptation = registry.build("adaptations", recipe.adaptation)
    return adaptation.reopen(source, folder)


def _recipe_and_task(folder: Path, facts: FinetuneManifest) -> tuple[FinetuneRecipe, Task]:
    recipe = config.fill_saved(FinetuneRecipe, facts.recipe, str(folder))
    task: Task = registry.build("tasks", recipe.task)
    task.restore(facts.task)
    return recipe, task


def _evaluate_rows(model: Finetuned, data: Path) -> dict[str, Any]:
    rows = labelled.read(data, model.task.columns("test"))
    scores = metrics.compute(model.task.metrics(), rows.labels, model.predict(rows))
    return {"model": str(model.folder), "data": str(data), "rows": len(rows), **scores}


def _evaluate_text(folder: Path, facts: PretrainManifest, data: Path) -> dict[str, Any]:
    recipe = config.fill_saved(PretrainRecipe, facts.recipe, str(folder))
    objective: Objective = registry.build("objectives", recipe.objective)
    module = assembled(folder, objective).to(precision.default_device())
    for part in objective.parts(module).values():
        choose_attention(part)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    # The text is read with the settings of the first corpus of raw files.
    parts = mixture.parts_of(recipe.corpus).values()
    raw = next((part.model_dump(include={"text", "documents"}) for part in parts if isinstance(part, CorpusConfig)), {})
    corpus = CorpusConfig.model_validate({**raw, "files": [str(data)]})
    name = f"evaluation-{config.fingerprint([readers.sources(corpus), artifact.identity(folder)])}"
    shard_dir = folder / "prepared" / name
    documents = readers.documents(corpus, Receipt())
    artifact.make_once(shard_dir, "shards", lambda staging: shards.write(documents, tokenizer, staging.path))
    vocabulary = vocabulary_of(tokenizer)
    rows = cut(shards.Shards(shard_dir), vocabulary, objective.row_shape(recipe.training.phases[0].length))
    corpora = [CorpusRows("", 1.0, rows)]
    learner = PretrainLearner(module, objective, corpora, corpora, vocabulary, recipe.seed)
    with _autocast(recipe, objective.parts(module)[""]):
        scores = learner.validate(limit=len(rows))
    return {"model": str(folder), "data": str(data), "rows": len(rows), **scores}


def _unlabeled(task: Task, texts: Sequence[Any]) -> Examples:
    """Return rows without gold values; tasks encode a label of each row, so each row gets one of the right type."""
    columns = task.columns("test")
    inputs = [column.name for column in columns if not column.is_gold]
    rows = [(text,) if len(inputs) == 1 or isinstance(text, str) else tuple(text) for text in texts]
    for row in rows:
        if len(row) != len(inputs):
            raise DataError(f"a row has {len(row)} values", allowed=f"The task reads: {', '.join(inputs)}")
    values = {name: [row[i] for row in rows] for i, name in enumerate(inputs)}
    gold = next((column for column in columns if column.is_gold), None)
    if gold is not None and gold.kind is labelled.TEXT:
        raise DataError(
            f"the task ranks the texts in the column {gold.name!r}, and there is no such column here",
            do="Use `headstart evaluate` with a file that has this column",
        )
    return Examples(values, [_placeholder(task, gold, row) for row in rows], "the given texts")


def _placeholder(task: Task, gold: InputColumn | None, row: tuple[Any, ...]) -> Any:
    if gold is None:
        return None
    label = task.labels[0] if task.labels else 0
    return [label] * len(row[0]) if gold.kind is labelled.LABELS else label


def _autocast(recipe: PretrainRecipe | FinetuneRecipe, model: PreTrainedModel) -> AbstractContextManager[object]:
    """Return the precision in which the run itself measured, so that its scores are reproduced."""
    return precision.autocast(precision.resolve(recipe.training.precision, model.device), model.device)
