"""What may be asked of a body before and after an adaptation, to see what it has forgotten."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from headstart.adaptation.on_top_network import OnTopModel
from headstart.evaluation import metrics
from headstart.evaluation.forgetting import Forgetting, before_and_after
from headstart.stages.finetune.cell import predict
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder, unwrap_peft
from headstart.training import precision

_MAX_LENGTH = 128


class Probe(Protocol):
    """Something that a body could do before."""

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Measure it of the checkpoint and of an adapted model."""
        ...


def probe(asked: bool | str, checkpoint: str) -> Probe | None:
    """Open what a recipe asks for: the loss of pre-training, a file of pairs, or nothing."""
    if isinstance(asked, str):
        return SimilarPairs(checkpoint, asked)
    return Pretraining(Path(checkpoint)) if asked else None


class SimilarPairs:
    """Pairs of sentences with a score, for any checkpoint: do the cosines of mean states still go with the scores?"""

    def __init__(self, checkpoint: str, pairs: str) -> None:
        """Read the pairs; their columns are sentence1, sentence2 and score, as STS-B has them."""
        self.task, self.what = Embed(Embed.Config()), f"spearman × 100 on {Path(pairs).name}"
        self.source = CheckpointFolder(checkpoint, self.task, seed=0)
        self.reading = self.source.reading(_MAX_LENGTH)
        rows = labelled.read(pairs, self.task.columns("test"))
        self.features, self.gold = self.task.encode(rows, self.reading), rows.labels

    def forgetting(self, model: PreTrainedModel) -> Forgetting:
        """Say what an adaptation did to the rank correlation of cosines and scores."""
        return before_and_after(self.what, model, self._correlation, lambda: self._before)

    @cached_property
    def _before(self) -> float:
        return self._correlation(self.source.pretrained())

    def _correlation(self, model: PreTrainedModel) -> float:
        plain = unwrap_peft(model)
        with plain.bare() if isinstance(plain, OnTopModel) else nullcontext(plain.base_model) as body:
            found = predict(body.to(precision.default_device()), self.task, self.features, self.reading)  # type: ignore[arg-type]
        return 100 * metrics.compute(["spearman"], self.gold, found)["spearman"]
