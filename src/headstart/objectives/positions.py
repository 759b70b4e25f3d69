"""Predictions stored in slots (one position each, as in batches) or along whole rows (as in collators)."""

from __future__ import annotations

from headstart.core.data import Batch
from headstart.core.lazy import torch


def scatter_to_rows(batch: Batch, name: str, fill_value: int) -> torch.Tensor:
    """Return a column of slots as whole rows, shape (rows, length), with `fill_value` where nothing is predicted."""
    full = torch.full_like(batch["input_ids"], fill_value)
    rows, slots = torch.nonzero(batch["weights"] > 0, as_tuple=True)
    full[rows, batch["positions"][rows, slots]] = batch[name][rows, slots]
    return full


def gather_slots(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return positions, labels and weights of shape (rows, slots), from labels (rows, length) with -100 for none."""
    predicted = labels != -100
    positions = predicted.int().argsort(dim=1, descending=True, stable=True)[:, : max(1, int(predicted.sum(1).max()))]
    return {
        "positions": positions,
        "labels": labels.gather(1, positions).clamp(min=0),
        "weights": predicted.gather(1, positions).float(),
    }


def summed_loss(logits: torch.Tensor, batch: Batch, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weighted sum of the cross-entropy in nats of logits (rows, slots, vocabulary).

    `weights` (rows, slots) default to those of the batch.
    """
    from headstart.objectives.cross_entropy import summed_cross_entropy

    weights = batch["weights"] if weights is None else weights
    return summed_cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), weights.flatten())


def count_correct(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the summed weight of the slots whose most likely token is the label."""
    return ((logits.argmax(-1) == batch["labels"]) * batch["weights"]).sum()
