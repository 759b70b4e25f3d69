"""Measure what a checkpoint can do before and after an adaptation, to see what the adaptation made it forget."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from headstart.adaptation.on_top_network import OnTopModel
from headstart.evaluation import metrics
from headstart.evaluation.forgetting import Forgetting, before_and_after
from headstart.stages.finetune.learner import predict
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder, unwrap_peft
from headstart.training import precision

_MAX_LENGTH = 128


class Probe(Protocol):
    """A measurement of what a checkpoint can do without the task's head."""

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Measure the checkpoint and a model adapted from it."""
        ...


def open_probe(setting: bool | str, checkpoint: str | Path | CheckpointFolder) -> Probe | None:
    """Return the probe for a recipe's `forgetting` setting: the pre-training loss, a file of pairs, or None."""
    if isinstance(setting, str):
        return SimilarPairs(checkpoint, setting)
    if not setting:
        return None
    return Pretraining(checkpoint.path if isinstance(checkpoint, CheckpointFolder) else Path(checkpoint))


class SimilarPairs:
    """The rank correlation between the cosines of sentence vectors and similarity scores; works for any checkpoint."""

    def __init__(self, checkpoint: str | Path | CheckpointFolder, pairs: str) -> None:
        """Read the pairs from a file with the columns sentence1, sentence2 and score, as in STS-B."""
        self.task, self.what = Embed(Embed.Config()), f"spearman × 100 on {Path(pairs).name}"
        if isinstance(checkpoint, CheckpointFolder):
            self.source = checkpoint.with_task(self.task, seed=0)
        else:
            self.source = CheckpointFolder(checkpoint, self.task, seed=0)
        self.spec = self.source.input_spec(_MAX_LENGTH)
        rows = labelled.read(pairs, self.task.columns("test"))
        self.features, self.gold = self.task.encode(rows, self.spec), rows.labels

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Return the correlation (× 100) of the checkpoint and of an adapted model."""
        return before_and_after(self.what, model, self._correlation, lambda: self._before)

    @cached_property
    def _before(self) -> float:
        return self._correlation(self.source.pretrained())

    def _correlation(self, model: PreTrainedModel) -> float:
        plain = unwrap_peft(model)
        with plain.without_top() if isinstance(plain, OnTopModel) else nullcontext(plain.base_model) as body:
            cosines = predict(body.to(precision.default_device()), self.task, self.features, self.spec)  # type: ignore[arg-type]
        return 100 * metrics.compute(["spearman"], self.gold, cosines)["spearman"]
