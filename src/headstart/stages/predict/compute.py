"""One chunk of rows → its predictions: the same function in this process, a worker process or a Ray task.

A chunk is computed by one thread on a CPU, in batches that depend on the chunk alone. So its predictions do not depend
on the number of processes. Jobs and answers are JSON.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from headstart.core import artifact, faults
from headstart.core.contracts import Task
from headstart.core.errors import ArtifactError, HeadstartError, RecipeError, error_from_dict
from headstart.stages.finetune.finished import Finetuned, unlabeled
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.tasks.base import BaseTask

PREDICTION, PROBABILITY = "prediction", "probability"
_DIGITS = 6
"""Decimals of a probability."""


class Scores:
    """Which columns are written about a prediction, besides the prediction."""

    def __init__(self, task: Task, top_k: int | None, all_labels: bool, as_vectors: bool = False) -> None:
        """Determine the columns; raises if the task does not give what was asked for."""
        self.labels: list[Any] = list(task.labels)
        overrides = getattr(type(task), "scores", None) is not BaseTask.scores
        predicts_numbers = getattr(getattr(task, "config", None), "regression", False)
        self.has_scores = overrides and not predicts_numbers and not as_vectors
        if (top_k or all_labels) and not self.has_scores:
            raise RecipeError("this model gives no probabilities", do=f"Leave out {'--top-k' if top_k else '--scores'}")
        if all_labels and not self.labels:
            raise RecipeError(
                "the task has no fixed set of labels, so there is no column for each",
                do="Leave out --scores, or use --top-k",
            )
        self.top_k = min(top_k, len(self.labels)) if top_k and self.labels else top_k or 0
        self.all_labels = all_labels

    @property
    def names(self) -> list[str]:
        """The columns, in the order in which they are written."""
        top = [name for i in range(1, self.top_k + 1) for name in (f"label_{i}", f"probability_{i}")]
        labels = [f"score_{label}" for label in self.labels] if self.all_labels else []
        return [PREDICTION, *([PROBABILITY] if self.has_scores else []), *top, *labels]

    def columns(self, predictions: Sequence[Any], scores: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the values of all columns for the rows of a chunk."""
        if not self.has_scores:
            return {PREDICTION: list(predictions)}
        rows = [self._row(prediction, row) for prediction, row in zip(predictions, scores, strict=True)]
        return {name: [row[name] for row in rows] for name in self.names}

    def _row(self, prediction: Any, scores: Any) -> dict[str, Any]:
        """Return the values of one row; a row of words has lists, with one entry per word."""
        if isinstance(scores, tuple):
            scores = dict(scores)
        if not isinstance(scores, list):
            return {PREDICTION: prediction, **self._one(prediction, scores)}
        words = [self._one(label, row) for label, row in zip(prediction, scores, strict=True)]
        return {PREDICTION: prediction, **{name: [word[name] for word in words] for name in self.names[1:]}}

    def _one(self, prediction: Any, scores: Mapping[Any, float]) -> dict[str, Any]:
        values: dict[str, Any] = {
            PROBABILITY: [_rounded(scores.get(label)) for label in prediction]
            if isinstance(prediction, list)
            else _rounded(scores.get(prediction))
        }
        best = sorted(scores.items(), key=lambda item: -item[1])[: self.top_k]
        for i in range(self.top_k):
            label, probability = best[i] if i < len(best) else (None, None)
            values |= {f"label_{i + 1}": label, f"probability_{i + 1}": _rounded(probability)}
        if self.all_labels:
            values |= {f"score_{label}": _rounded(scores.get(label)) for label in self.labels}
        return values


def run_job(job: str) -> str:
    """Predict a chunk and return its columns, or the error, as JSON."""
    try:
        return json.dumps({"columns": _predict(json.loads(job))})
    except Exception as error:
        reported = faults.explain(error) or (error if isinstance(error, HeadstartError) else None)
        return json.dumps({"error": reported.to_dict() if reported else {"traceback": traceback.format_exc()}})


def columns_of(answer: str) -> dict[str, list[Any]]:
    """Return the columns in the answer to a job; raises the error that the job raised."""
    parsed: dict[str, Any] = json.loads(answer)
    if "error" in parsed:
        if "traceback" in parsed["error"]:
            raise RuntimeError("a chunk failed:\n" + parsed["error"]["traceback"])
        raise error_from_dict(parsed["error"])
    columns: dict[str, list[Any]] = parsed["columns"]
    return columns


def forget_model() -> None:
    """Release the model of this process."""
    _open.cache_clear()


def _predict(job: Mapping[str, Any]) -> dict[str, list[Any]]:
    model = _open(job["folder"], job["identity"])
    scores = Scores(model.task, job["top_k"], job["scores"], job["as_vectors"])
    values: list[list[Any]] = list(job["columns"].values())
    with _one_thread():
        if job["as_vectors"]:
            return {PREDICTION: list(model.vectors(values[0]))}
        texts = values[0] if len(values) == 1 else list(zip(*values, strict=True))
        return scores.columns(*model.predict_with_scores(unlabeled(model.task, texts), by_tokens=True))


@lru_cache(maxsize=1)
def _open(folder: str, identity: str) -> Finetuned:
    """Open a model whose files the main process has verified, once per process."""
    if artifact.identity(folder) != identity:
        raise ArtifactError(f"{folder} changed while its predictions were computed", do="Rerun the command")
    return Finetuned(Path(folder), FinetuneManifest.read(Path(folder)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread on a CPU: sums are then added in the same order, however many cores there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, _DIGITS)
