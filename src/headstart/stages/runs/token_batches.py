"""Inference in batches of similar lengths that are limited by tokens, not by rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.core.contracts import Task
from headstart.core.data import Feature, InputSpec


def batch_tokens(device: torch.device) -> int:
    """Return the number of tokens in a batch, padding included.

    On a CPU a larger batch no longer fits into the caches and is slower per token.
    """
    return 1024 if device.type == "cpu" else 65_536


def run_in_token_batches(
    model: PreTrainedModel, task: Task, features: Sequence[Feature], spec: InputSpec, tokens: int
) -> list[Any]:
    """Return the model's raw output for each feature, in their order; the batches depend on the features alone."""
    device = next(model.parameters()).device
    lengths = [task.length(feature) for feature in features]
    order = sorted(range(len(features)), key=lengths.__getitem__)
    outputs: list[Any] = [None] * len(features)
    model.eval()
    with torch.inference_mode():
        for indices in _batches(order, lengths, [_texts(feature) for feature in features], tokens):
            batch = task.collate([features[i] for i in indices], spec)
            placed = {name: tensor.to(device) for name, tensor in batch.items()}
            for i, output in zip(indices, task.predict(model, placed), strict=True):
                outputs[i] = output
    return outputs


def _batches(
    order: Sequence[int], lengths: Sequence[int], texts: Sequence[int], tokens: int
) -> Iterator[Sequence[int]]:
    """Yield the indices of each batch: ascending lengths, at most `tokens` tokens when padded, at least one feature."""
    batch: list[int] = []
    count = 0
    for i in order:
        if batch and (count + texts[i]) * lengths[i] > tokens:
            yield batch
            batch, count = [], 0
        batch.append(i)
        count += texts[i]
    if batch:
        yield batch


def _texts(feature: Feature) -> int:
    """Return the number of texts of a feature: 1, or one for each choice."""
    ids = feature["input_ids"]
    return len(ids) if isinstance(ids[0], list) else 1
