"""Predictions in slots with a position each, as batches hold them, or along whole rows, as collators pad them."""

from __future__ import annotations

import torch

from headstart.core.data import Batch
from headstart.objectives.cross_entropy import summed_cross_entropy


def spread(batch: Batch, name: str, filler: int) -> torch.Tensor:
    """Lay what a batch holds in slots along whole rows, the filler wherever nothing is predicted."""
    whole = torch.full_like(batch["input_ids"], filler)
    rows, slots = torch.nonzero(batch["weights"] > 0, as_tuple=True)
    whole[rows, batch["positions"][rows, slots]] = batch[name][rows, slots]
    return whole


def summed_loss(logits: torch.Tensor, batch: Batch, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the cross-entropy in nats of logits in slots, summed by the batch's weights or by others."""
    counted = batch["weights"] if weights is None else weights
    return summed_cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), counted.flatten())


def hits(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the weight of the slots whose likeliest token is the label."""
    return ((logits.argmax(-1) == batch["labels"]) * batch["weights"]).sum()


def slots(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return positions, labels and weights in slots, from labels along whole rows with -100 for none."""
    chosen = labels != -100
    positions = chosen.int().argsort(dim=1, descending=True, stable=True)[:, : max(1, int(chosen.sum(1).max()))]
    return {
        "positions": positions,
        "labels": labels.gather(1, positions).clamp(min=0),
        "weights": chosen.gather(1, positions).float(),
    }
