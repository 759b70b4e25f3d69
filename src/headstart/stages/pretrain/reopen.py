"""Reopens the pre-training of a finished checkpoint: its objective, its networks, its rows and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from headstart.checkpoint.load import load_model, load_tokenizer
from headstart.core import artifact, config, registry
from headstart.core.contracts import Objective
from headstart.core.data import Batch, MixtureComponent, Sample, Vocabulary
from headstart.core.errors import ArtifactError
from headstart.core.randomness import generator
from headstart.core.vocabulary import vocabulary_of
from headstart.evaluation.forgetting import Forgetting, before_and_after
from headstart.stages.pretrain.build import tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, RowBatches
from headstart.stages.pretrain.prepare import Prepared, prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.manifest import PretrainManifest
from headstart.tasks.source import unwrap_peft
from headstart.tokens.rows import cut
from headstart.training import precision
from headstart.training.compilation import choose_attention


def assembled(folder: Path, objective: Objective) -> torch.nn.Module:
    """Return the module that the objective trained, with its networks loaded from the folder and its subfolders."""

    def make(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        loaded: PreTrainedModel = load_model(auto_class, folder / part, dtype=torch.float32)
        return loaded

    return objective.assemble(make)


def recorded_recipe(folder: Path) -> PretrainRecipe | None:
    """Return the filled recipe of a finished pre-training, or None if the folder is not the output of one."""
    values = artifact.read_manifest(folder) if artifact.is_complete(folder) else {}
    if values.get("kind") != PretrainManifest.KIND:
        return None
    return config.fill_saved(PretrainRecipe, PretrainManifest.from_dict(values, folder).recipe, str(folder))


class Pretraining:
    """The pre-training of a checkpoint, to continue beside a task, and to measure before and after fine-tuning."""

    def __init__(self, folder: Path) -> None:
        """Read the recipe of the pre-training from the manifest of the folder."""
        recipe = recorded_recipe(folder)
        if recipe is None:
            raise ArtifactError(
                f"{folder} does not record how it was pre-trained",
                allowed="An output of `headstart pretrain` records it in headstart.json",
                do="Remove rehearsal and forgetting, or choose such a checkpoint",
            )
        self.folder, self.recipe = folder, recipe
        self.objective: Objective = registry.build("objectives", self.recipe.objective)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the checkpoint's tokenizer."""
        return vocabulary_of(load_tokenizer(self.folder))

    @cached_property
    def feed(self) -> RowBatches:
        """Return batches of the training rows of all corpora, with the first row length."""
        return RowBatches(self._rows("train"), self.objective, self.vocabulary, self.recipe.seed)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return one corrupted row per sample, drawn from the corpora by share; the sample alone determines the row."""
        return self.feed.batch([Sample(sample.epoch, self._draw(sample)) for sample in samples])

    def network(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the module of pre-training on the body of `model`, whose parameters it shares."""
        module = assembled(self.folder, self.objective)
        network = self.objective.parts(module)[""]
        _share_parameters(network.base_model, unwrap_peft(model).base_model)
        network.tie_weights()
        choose_attention(network)
        return module

    def loss(self, network: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the objective's loss, summed over the batch's predictions."""
        return self.objective.loss(network, batch)

    def weight(self, batch: Batch) -> float:
        """Return the number of the objective's predictions."""
        return self.objective.weight(batch)

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Return the change of the pre-training loss on held-out text, measured with the checkpoint's own head."""

        def loss_of(adapted: PreTrainedModel) -> float:
            return self._held_out(self.network(adapted))

        return before_and_after("pre-training loss", model, loss_of, lambda: self._before, lower_is_better=True)

    @cached_property
    def _before(self) -> float:
        return self._held_out(assembled(self.folder, self.objective))

    def _held_out(self, network: torch.nn.Module) -> float:
        """Return the loss on the rows that pre-training held out."""
        device = precision.default_device()
        learner = PretrainLearner(
            network.to(device), self.objective, self._rows("train"), self._rows("validation"), self.vocabulary,
            self.recipe.seed,
        )  # fmt: skip
        return learner.validate()["loss"]

    @cached_property
    def _prepared(self) -> Prepared:
        """Return the encoded text, which is prepared again if it was deleted."""
        recipe = self.recipe
        return prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, self.folder / "prepared", quiet=True)

    def _rows(self, split: Literal["train", "validation"]) -> list[CorpusRows]:
        shape = self.objective.row_shape(self.recipe.training.phases[0].length)
        return [
            CorpusRows(corpus.name, corpus.share, cut(getattr(corpus, split), self.vocabulary, shape, corpus.language))
            for corpus in self._prepared.corpora
        ]

    def _draw(self, sample: Sample) -> int:
        """Return the index of the row that a sample reads."""
        rng = generator(self.recipe.seed, sample.epoch, sample.index, "rehearsal")
        parts = self.feed.parts or [MixtureComponent(len(self.feed), 1.0)]
        i = int(rng.choice(len(parts), p=[part.share for part in parts]))
        return sum(part.size for part in parts[:i]) + int(rng.integers(parts[i].size))


def _share_parameters(module: torch.nn.Module, source: torch.nn.Module) -> None:
    """Replace the submodules and parameters of `module` by those of `source`; what only `source` has is ignored.

    Lists of layers are replaced element by element, so that `source` may have more layers, or a pooler.
    """
    for name, _ in list(module.named_parameters(recurse=False)):
        setattr(module, name, getattr(source, name))
    for name, child in list(module.named_children()):
        other = getattr(source, name, None)
        if isinstance(other, torch.nn.Module):
            if any(isinstance(inner, torch.nn.ModuleList) for inner in child.modules()):
                _share_parameters(child, other)
            else:
                setattr(module, name, other)
