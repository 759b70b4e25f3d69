"""Score a finished model on other data: labelled rows for a fine-tuned one, raw text for a pre-trained one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headstart.core import artifact, config, registry
from headstart.core.contracts import Adaptation, Objective, Task
from headstart.core.data import InputSpec
from headstart.core.errors import ArtifactError
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.evaluation import metrics
from headstart.stages.finetune.cell import predict
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.run import ADAPTER
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import assembled
from headstart.stages.runs import card
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder, family_of, unwrap_peft, usable
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.training import precision
from headstart.training.compilation import choose_attention


def run(model: Path, data: Path) -> dict[str, Any]:
    """Verify the model's folder, score it on the data and return named numbers."""
    manifest = artifact.verify(model)
    if manifest["kind"] == "model of finetune":
        return _labelled(model, manifest, data)
    if manifest["kind"] == "checkpoint of pretrain":
        return _text(model, manifest, data)
    raise ArtifactError(f"{model} is a {manifest['kind']}", allowed="evaluate takes the output of pretrain or finetune")


def load(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Verify an artifact and load it: by the transformers class that its config names, or as an adapter of peft's."""
    manifest = artifact.verify(path)
    if (path / ADAPTER).is_file():
        return _adapter(path, manifest).eval(), AutoTokenizer.from_pretrained(str(path))
    registry.import_network(path)
    architecture = transformers.AutoConfig.from_pretrained(str(path)).architectures[0]
    # A network of our own is no name of transformers', but its auto classes know it.
    loader = getattr(transformers, architecture, None) or getattr(transformers, card.loaded_by(architecture)[0])
    model = loader.from_pretrained(str(path), dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(str(path))


def _labelled(folder: Path, manifest: dict[str, Any], data: Path) -> dict[str, Any]:
    recipe = config.fill_saved(FinetuneRecipe, manifest["recipe"], str(folder))
    task: Task = registry.build("tasks", recipe.task)
    task.restore(manifest["task"])
    rows = labelled.read(data, task.columns("test"))
    model, tokenizer = load(folder)
    choose_attention(model)
    reading = InputSpec(usable(tokenizer), family_of(unwrap_peft(model).config), recipe.training.max_length)
    with _precision_of(recipe, model):
        predicted = predict(model, task, task.encode(rows, reading), reading)
    return {
        "model": str(folder),
        "data": str(data),
        "rows": len(rows),
        **metrics.compute(task.metrics(), rows.labels, predicted),
    }


def _adapter(folder: Path, manifest: dict[str, Any]) -> PreTrainedModel:
    """Open the checkpoint that an adapter was trained on, as it was then, and put the adapter on it."""
    recipe = config.fill_saved(FinetuneRecipe, manifest["recipe"], str(folder))
    task: Task = registry.build("tasks", recipe.task)
    task.restore(manifest["task"])
    source = CheckpointFolder(recipe.model, task, manifest["seed"])
    if artifact.identity(source.path) != manifest["parents"]["model"]:
        raise ArtifactError(
            f"{source.path} is not the checkpoint that the adapter in {folder} was trained on",
            allowed="An adapter belongs to the weights beneath it",
            do="Restore that checkpoint, or fine-tune again",
        )
    adaptation: Adaptation = registry.build("adaptations", recipe.adaptation)
    return adaptation.reopen(source, folder)


def _text(folder: Path, manifest: dict[str, Any], data: Path) -> dict[str, Any]:
    recipe = config.fill_saved(PretrainRecipe, manifest["recipe"], str(folder))
    objective: Objective = registry.build("objectives", recipe.objective)
    module, tokenizer = assembled(folder, objective), AutoTokenizer.from_pretrained(str(folder))
    model = objective.parts(module)[""]
    for part in objective.parts(module).values():
        choose_attention(part)
    # Other text is read as the first corpus was.
    like = next(iter(mixture.parts_of(recipe.corpus).values()))
    corpus = CorpusConfig(files=[str(data)], text=like.text, documents=like.documents)
    name = f"evaluation-{config.fingerprint([readers.sources(corpus), artifact.identity(folder)])}"
    home = folder / "prepared" / name
    documents = readers.documents(corpus, Receipt())
    artifact.make_once(home, "shards", lambda staging: shards.write(documents, tokenizer, staging))
    vocabulary = vocabulary_of(tokenizer)
    rows = cut(shards.Shards(home), vocabulary, objective.row_shape(recipe.training.phases[0].length))
    corpora = [CorpusRows("", 1.0, rows)]
    learner = PretrainLearner(module, objective, corpora, corpora, vocabulary, recipe.seed)
    with _precision_of(recipe, model):
        measured = learner.validate(limit=len(rows))
    return {"model": str(folder), "data": str(data), "rows": len(rows), **measured}


def _precision_of(recipe: PretrainRecipe | FinetuneRecipe, model: PreTrainedModel) -> AbstractContextManager[object]:
    """Return the number format in which the run itself measured, so that its scores are met again."""
    return precision.autocast(precision.resolve(recipe.training.precision, model.device), model.device)
