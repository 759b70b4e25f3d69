"""A finished fine-tuned model, loaded again to predict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.checkpoint.load import load_class, load_config, load_tokenizer
from headstart.core import artifact, config, registry, renames
from headstart.core.contracts import Adaptation, Task
from headstart.core.data import Examples, Feature, InputColumn, InputSpec
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.stages.finetune.base_model import find_base
from headstart.stages.finetune.learner import run_model
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.truncation import require_length
from headstart.stages.runs import card, manifest
from headstart.stages.runs.manifest import ADAPTER, FinetuneManifest
from headstart.stages.runs.token_batches import batch_tokens, run_in_token_batches
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.multi_label import MultiLabel
from headstart.tasks.source import CheckpointFolder, family_of, require_checkpoint, unwrap_peft, with_pad_token
from headstart.training import precision
from headstart.training.compilation import choose_attention


def load(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer: an artifact, which is verified first, or any local Hugging Face folder.

    The class is the one that config.json names; an adapter is put on the checkpoint that it was trained on.
    """
    if (path / artifact.MANIFEST).exists() or not path.is_dir():
        artifact.verify(path)
    elif (path / ADAPTER).is_file():
        raise ArtifactError(
            f"{path} is an adapter that Headstart did not train",
            allowed="Headstart loads whole models, and adapters that it trained",
            do="Load it with peft",
        )
    else:
        require_checkpoint(path)
    return _load(path), load_tokenizer(path)


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

    def __init__(self, folder: Path, facts: FinetuneManifest, overrides: Sequence[str] = ()) -> None:
        """Restore the task; the weights are loaded at the first prediction.

        Args:
            folder: the output of a run.
            facts: its manifest.
            overrides: changes of how data is read: the columns of the task, such as `task.text=review`, and
                `training.max_length`.
        """
        self.folder = folder
        self.recipe, self.task = _recipe_and_task(folder, facts, overrides)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The network, on the default device."""
        model = _load(self.folder).to(precision.default_device())  # type: ignore[arg-type]
        choose_attention(model)
        return model

    @cached_property
    def spec(self) -> InputSpec:
        """How the network reads text."""
        tokenizer, max_length = with_pad_token(load_tokenizer(self.folder)), self.recipe.training.max_length
        network = unwrap_peft(self.model).config
        require_length(max_length, network, self.folder)
        return InputSpec(tokenizer, family_of(network), max_length)

    def predict(self, rows: Examples) -> list[Any]:
        """Return one prediction per row, in the precision of the run."""
        return self.predict_with_scores(rows)[0]

    def predict_with_scores(self, rows: Examples, by_tokens: bool = False) -> tuple[list[Any], list[Any]]:
        """Return one prediction per row, and the scores that the task gives for each; empty if it gives none.

        Batches are those in which the run evaluated, so that its scores are reproduced. With `by_tokens`, they are
        limited by tokens, which is faster.
        """
        features = self.task.encode(rows, self.spec)
        outputs = self._run(features, by_tokens)
        decoded = self.task.decode(outputs, features, self.spec)
        return decoded, self.task.scores(outputs, features, self.spec)

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vector of each text, for the task `embed`."""
        assert isinstance(self.task, Embed), "only `embed` gives vectors"
        outputs = self._run(self.task.text_features(texts, self.spec), by_tokens=True)
        return [vector.tolist() for vector in outputs]

    def predict_texts(self, texts: Sequence[Any]) -> list[Any]:
        """Return one prediction per text; a task that reads several columns takes tuples.

        The prediction of `embed` for a single text is its vector.
        """
        if isinstance(self.task, Embed) and all(isinstance(text, str) for text in texts):
            return list(self.vectors(texts))
        return self.predict_with_scores(unlabeled(self.task, texts))[0]

    def _run(self, features: Sequence[Feature], by_tokens: bool) -> list[Any]:
        device = self.model.device
        with precision.autocast(precision.resolve(self.recipe.training.precision, device), device):
            if by_tokens:
                return run_in_token_batches(self.model, self.task, features, self.spec, batch_tokens(device))
            return run_model(self.model, self.task, features, self.spec)


def _load(folder: Path) -> PreTrainedModel:
    if (folder / ADAPTER).is_file():
        return _load_adapter(folder).eval()
    architecture = str((load_config(folder).architectures or [""])[0])
    loader = getattr(transformers, architecture, None)
    if not (isinstance(loader, type) and issubclass(loader, PreTrainedModel)):
        # transformers exports no class of Headstart's own networks, but its auto classes know them.
        loader = getattr(transformers, card.loaded_by(architecture)[0])
    return load_class(loader, folder, dtype=torch.float32).eval()  # type: ignore[no-any-return]


def _load_adapter(folder: Path) -> PreTrainedModel:
    """Load the checkpoint that an adapter was trained on, and put the adapter on it."""
    facts = FinetuneManifest.read(folder)
    recipe, task = _recipe_and_task(folder, facts)
    source = CheckpointFolder(find_base(folder, recipe.model, facts.parents.get("model")), task, facts.seed)
    adaptation: Adaptation = registry.build("adaptations", recipe.adaptation)
    return adaptation.reopen(source, folder)


def _recipe_and_task(
    folder: Path, facts: FinetuneManifest, overrides: Sequence[str] = ()
) -> tuple[FinetuneRecipe, Task]:
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith("task.") and key != "training.max_length":
            raise RecipeError(
                f"the override {override!r} changes more than how data is read",
                allowed="A finished model accepts task.… (its columns) and training.max_length",
                do="Remove the override, or fine-tune again",
            )
    # Upgraded first, so that an override finds the current keys.
    raw = config.apply_overrides(renames.upgrade(facts.recipe), overrides)
    recipe = config.fill_saved(FinetuneRecipe, raw, str(folder))
    task: Task = registry.build("tasks", recipe.task)
    task.restore(facts.task)
    return recipe, task


def unlabeled(task: Task, texts: Sequence[Any]) -> Examples:
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
    if isinstance(task, MultiLabel):
        return []
    label = task.labels[0] if task.labels else 0
    return [label] * len(row[0]) if gold.kind is labelled.LABELS else label
