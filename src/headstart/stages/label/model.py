"""What choosing rows needs of a fine-tuned model: its labels, its probabilities, and vectors of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from headstart.adaptation.on_top_network import OnTopModel
from headstart.checkpoint.names import run_folder_of
from headstart.core.contracts import Task
from headstart.core.data import Batch, Examples
from headstart.core.errors import ArtifactError
from headstart.evaluation.metrics import Floats
from headstart.stages.finetune.finished import Finetuned, unlabeled
from headstart.stages.runs import manifest
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.stages.runs.token_batches import batch_tokens, run_in_token_batches
from headstart.tasks.classify import Classify
from headstart.tasks.multi_label import MultiLabel
from headstart.tasks.source import unwrap_peft

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Labeler:
    """A fine-tuned model that gives labels to texts."""

    finetuned: Finetuned
    task: Classify | MultiLabel

    @classmethod
    def open(cls, model: Path) -> Labeler:
        """Open a run by its folder or its name; raises if its task does not give texts labels from a fixed set."""
        folder = run_folder_of(model)
        facts = manifest.read_any(folder)
        if not isinstance(facts, FinetuneManifest):
            raise ArtifactError(f"{model} is a {facts.KIND}", allowed="--model is an output of `headstart finetune`")
        finetuned = Finetuned(folder, facts)
        task = finetuned.task
        if isinstance(task, MultiLabel) or (isinstance(task, Classify) and not task.config.regression):
            return cls(finetuned, task)
        raise ArtifactError(
            f"the task of {model} gives texts no labels from a fixed set",
            allowed="Rows are chosen for `classify` and `multi_label`",
        )

    @property
    def columns(self) -> list[str]:
        """The columns of the texts that the model reads."""
        return list(self.task.config.text)

    @property
    def label(self) -> str:
        """The column of the labels."""
        return self.task.config.label

    @property
    def separator(self) -> str | None:
        """What separates the labels of a row; None if each row has one."""
        return self.task.config.separator if isinstance(self.task, MultiLabel) else None

    @property
    def threshold(self) -> float | None:
        """The probability above which a label is predicted, if a row may have several."""
        return self.task.threshold if isinstance(self.task, MultiLabel) else None

    def predict(self, rows: Sequence[Sequence[str]]) -> tuple[list[Any], list[Any]]:
        """Return the prediction of each row, and the probability of each label."""
        return self.finetuned.predict_with_scores(self._examples(rows), by_tokens=True)

    def vectors(self, rows: Sequence[Sequence[str]]) -> Floats:
        """Return the mean of the last states of each row."""
        model, spec = self.finetuned.model, self.finetuned.spec
        features = self.task.encode(self._examples(rows), spec)
        states: Any = _MeanStates(self.task)
        return np.stack(run_in_token_batches(model, states, features, spec, batch_tokens(model.device)))

    def _examples(self, rows: Sequence[Sequence[str]]) -> Examples:
        return unlabeled(self.task, [row[0] if len(row) == 1 else tuple(row) for row in rows])


class _MeanStates:
    """Computes mean states in place of a task's predictions."""

    def __init__(self, task: Task) -> None:
        self.length, self.collate = task.length, task.collate

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the mean of the last states of each row of a batch."""
        network: Any = unwrap_peft(model)
        if isinstance(network, OnTopModel):
            network = network.network
        body = network.get_encoder() if network.config.is_encoder_decoder else network.base_model
        states = body(**{name: batch[name] for name in _INPUTS if name in batch})[0].float()
        mask = batch["attention_mask"][..., None].to(states)
        means: torch.Tensor = (states * mask).sum(1) / mask.sum(1)
        return list(means.cpu().numpy())
