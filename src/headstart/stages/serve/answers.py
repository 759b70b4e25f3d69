"""Inputs of a request become rows of tokens, and the outputs of the rows become the parts of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import HeadstartError
from headstart.stages.finetune.finished import unlabeled
from headstart.stages.serve.bodies import BatchRow, Slot
from headstart.stages.serve.refusals import Refusal
from headstart.tasks.embed import Embed

_DIGITS = 6
_NEEDS = {
    "embed": "a text",
    "tag": "a list of words, or a text that is split at its spaces",
    1: "a text",
    2: "a list of two texts",
}


def require_inputs(facts: dict[str, Any], inputs: Sequence[Any], max_inputs: int, max_characters: int) -> list[Any]:
    """Return the inputs in the form that the task takes; raises a refusal for anything else.

    Args:
        facts: the task's `kind` and its `inputs`, the names of the columns that it reads.
        inputs: what the client sent.
        max_inputs: the largest number of inputs.
        max_characters: the largest number of characters of one input.
    """
    if not inputs:
        raise Refusal(422, "The request has no inputs. Send at least one.")
    if len(inputs) > max_inputs:
        raise Refusal(413, f"The request has {len(inputs)} inputs; at most {max_inputs} are allowed. Send fewer.")
    kind = facts["kind"]
    checked: list[Any] = []
    for number, value in enumerate(inputs, start=1):
        if kind == "tag" and isinstance(value, str):
            value = value.split()
        parts = value if isinstance(value, list) else [value]
        count = None if kind == "tag" else 1 if kind == "embed" else len(facts["inputs"])
        fits = isinstance(value, list) == (kind == "tag" or count == 2) and all(isinstance(part, str) for part in parts)
        if not fits or not parts or (count is not None and len(parts) != count):
            needs = _NEEDS[kind if kind in _NEEDS else count or 1]
            raise Refusal(422, f"Input {number} has another form; this task reads {needs}.")
        characters = sum(map(len, parts))
        if characters > max_characters:
            message = f"Input {number} has {characters:,} characters; at most {max_characters:,} are allowed."
            raise Refusal(413, message)
        if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
            raise Refusal(422, f"Input {number} is not valid Unicode: it contains half of a surrogate pair.")
        checked.append(value)
    return checked


def encode(slot: Slot, inputs: Sequence[Any]) -> list[BatchRow]:
    """Tokenize inputs, truncated to the task's maximum length; one row for each."""
    try:
        if isinstance(slot.task, Embed):
            features = slot.task.text_features(inputs, slot.spec)
        else:
            rows: Examples = unlabeled(slot.task, inputs)
            features = slot.task.encode(rows, slot.spec)
    except HeadstartError as error:
        raise Refusal(422, str(error)) from error
    return [BatchRow(slot, feature, slot.task.length(feature)) for feature in features]


def decode(slot: Slot, rows: Sequence[BatchRow], outputs: Sequence[Any], top_k: int | None) -> list[dict[str, Any]]:
    """Return one JSON object per input: a label or several with scores, a number, tags, or a vector."""
    if isinstance(slot.task, Embed):
        return [{"embedding": [float(value) for value in vector]} for vector in outputs]
    features = [row.feature for row in rows]
    predictions = slot.task.decode(outputs, features, slot.spec)
    scores = slot.task.scores(outputs, features, slot.spec)
    if not scores:
        return [{"value": prediction} for prediction in predictions]
    if slot.facts["kind"] == "tag":
        return [
            {"tags": tags, "scores": [_rounded(words[i].get(tag)) for i, tag in enumerate(tags)]}
            for tags, words in zip(predictions, scores, strict=True)
        ]
    if slot.facts["kind"] == "multi_label":
        return [
            {"labels": labels, "scores": _best(row, top_k)} for labels, row in zip(predictions, scores, strict=True)
        ]
    return [
        {"label": label, "score": _rounded(row[label]), "scores": _best(row, top_k)}
        for label, row in zip(predictions, scores, strict=True)
    ]


def relevance(slot: Slot, rows: Sequence[BatchRow], outputs: Sequence[Any]) -> list[float]:
    """Return the relevance of each pair: the number of a regression, or the probability of the last label."""
    features = [row.feature for row in rows]
    scores = slot.task.scores(outputs, features, slot.spec)
    if not scores:
        return [float(value) for value in slot.task.decode(outputs, features, slot.spec)]
    last = slot.task.labels[-1]
    return [round(float(row[last]), _DIGITS) for row in scores]


def cosines(vectors: Sequence[Any]) -> list[float]:
    """Return the cosine of the first vector with each of the others."""
    matrix = np.stack([np.asarray(vector, dtype=np.float64) for vector in vectors])
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    return [round(float(value), _DIGITS) for value in matrix[1:] @ matrix[0]]


def _best(scores: dict[Any, float], top_k: int | None) -> list[dict[str, Any]]:
    ranked = sorted(scores.items(), key=lambda item: -item[1])[:top_k]
    return [{"label": label, "score": _rounded(score)} for label, score in ranked]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
