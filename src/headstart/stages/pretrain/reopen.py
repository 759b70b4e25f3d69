"""The pre-training of a finished checkpoint, opened again: its objective, its networks, its rows and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel

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
from headstart.tasks.source import unwrap_peft
from headstart.tokens.rows import cut
from headstart.training import precision
from headstart.training.compilation import choose_attention


def assembled(folder: Path, objective: Objective) -> torch.nn.Module:
    """Return what the objective trained, its networks loaded from the folder and its companions."""
    registry.import_network(folder)

    def make(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        loaded = getattr(transformers, auto_class).from_pretrained(str(folder / part), dtype=torch.float32)
        return loaded  # type: ignore[no-any-return]

    return objective.assemble(make)


class Pretraining:
    """A checkpoint's pre-training: to be gone on with beside a task, and to be measured before and after one."""

    def __init__(self, folder: Path) -> None:
        """Read from the folder's manifest how it was made."""
        manifest = artifact.read_manifest(folder) if artifact.is_complete(folder) else {}
        if manifest.get("kind") != "checkpoint of pretrain":
            raise ArtifactError(
                f"{folder} does not tell how it was pre-trained",
                allowed="An output of `headstart pretrain` does, by its headstart.json",
                do="Leave out rehearsal and forgetting, or choose such a checkpoint",
            )
        self.folder = folder
        self.recipe = config.fill_saved(PretrainRecipe, manifest["recipe"], str(folder))
        self.objective: Objective = registry.build("objectives", self.recipe.objective)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return what the checkpoint's tokenizer knows."""
        return vocabulary_of(AutoTokenizer.from_pretrained(str(self.folder)))

    @cached_property
    def feed(self) -> RowBatches:
        """Return the training rows, of the first length, of all corpora."""
        return RowBatches(self._rows("train"), self.objective, self.vocabulary, self.recipe.seed)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return one corrupted row for each sample, drawn by the sample's identity, of each corpus in its share."""
        return self.feed.batch([Sample(sample.epoch, self._drawn(sample)) for sample in samples])

    def network(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the networks of pre-training over the body of `model`, whose parameters they share."""
        module = assembled(self.folder, self.objective)
        part = self.objective.parts(module)[""]
        _share(part.base_model, unwrap_peft(model).base_model)
        part.tie_weights()
        choose_attention(part)
        return module

    def loss(self, network: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the objective's loss, summed over the batch's predictions."""
        return self.objective.loss(network, batch)

    def weight(self, batch: Batch) -> float:
        """Return the number of the objective's predictions."""
        return self.objective.weight(batch)

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Say what an adaptation did to the loss of pre-training on held-out text, under the checkpoint's own head."""

        def loss_of(adapted: PreTrainedModel) -> float:
            return self._held_out(self.network(adapted))

        return before_and_after("pre-training loss", model, loss_of, lambda: self._before, lower_is_better=True)

    @cached_property
    def _before(self) -> float:
        return self._held_out(assembled(self.folder, self.objective))

    def _held_out(self, network: torch.nn.Module) -> float:
        """Return the loss on the held-out rows that pre-training measured itself by."""
        device = precision.default_device()
        learner = PretrainLearner(
            network.to(device), self.objective, self._rows("train"), self._rows("validation"), self.vocabulary,
            self.recipe.seed,
        )  # fmt: skip
        return learner.validate()["loss"]

    @cached_property
    def _prepared(self) -> Prepared:
        """Return the encoded text, made anew where it is gone."""
        recipe = self.recipe
        return prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, self.folder / "prepared", quiet=True)

    def _rows(self, split: Literal["train", "validation"]) -> list[CorpusRows]:
        shape = self.objective.row_shape(self.recipe.training.phases[0].length)
        return [
            CorpusRows(one.name, one.share, cut(getattr(one, split), self.vocabulary, shape))
            for one in self._prepared.corpora
        ]

    def _drawn(self, sample: Sample) -> int:
        draw = generator(self.recipe.seed, sample.epoch, sample.index, "rehearsal")
        parts = self.feed.parts or [MixtureComponent(len(self.feed), 1.0)]
        chosen = int(draw.choice(len(parts), p=[part.share for part in parts]))
        return sum(part.size for part in parts[:chosen]) + int(draw.integers(parts[chosen].size))


def _share(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Put their modules and parameters in place of ours, so far as ours go: a pooler, or a layer more, is left out."""
    for name, _ in list(ours.named_parameters(recurse=False)):
        setattr(ours, name, getattr(theirs, name))
    for name, child in list(ours.named_children()):
        other = getattr(theirs, name, None)
        if isinstance(other, torch.nn.Module):
            if any(isinstance(module, torch.nn.ModuleList) for module in child.modules()):
                _share(child, other)
            else:
                setattr(ours, name, other)
