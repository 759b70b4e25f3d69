"""How likely a model finds some words at some places."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.core.data import Batch

_LOGITS_TOGETHER = 1 << 26
"""Numbers of a forward pass: 256 MB in 32 bits."""
_WORTH_SHARING = 32
"""Tokens that all rows begin with, from which on it pays to read them once."""


def word_scores(model: PreTrainedModel, batch: Batch) -> list[Any]:
    """Return for each row the log-probabilities of its words, each the sum over its tokens.

    `targets` holds the words' tokens, of shape (rows, words, tokens), filled up by -100, and `places` where the model
    predicts them.
    """
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
    width = len(torch.unique(batch["places"])) if keeps else batch["input_ids"].shape[1]
    together = max(1, _LOGITS_TOGETHER // (width * model.config.vocab_size))
    found: list[Any] = []
    for start in range(0, len(batch["input_ids"]), together):
        part = {name: tensor[start : start + together] for name, tensor in batch.items()}
        logits, places = _continued(model, part) if keeps else (_logits(model, part), part["places"])
        rows = torch.arange(len(places), device=places.device)[:, None, None]
        chances = logits[rows, places].float().log_softmax(-1)
        targets = part["targets"]
        scores = chances.gather(-1, targets.clamp(min=0)[..., None])[..., 0].masked_fill(targets == -100, 0.0).sum(-1)
        words = (targets[..., 0] != -100).sum(-1).tolist()
        found += [row[:count] for row, count in zip(scores.cpu().numpy(), words, strict=True)]
    return found


def _logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return logits


def _continued(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a decoder at the places that are asked for, and where among these each place is.

    Examples that stand before every question are read once and remembered, since they are most of a prompt.
    """
    ids, mask = batch["input_ids"], batch["attention_mask"]
    kept, places = torch.unique(batch["places"][batch["targets"] != -100]), batch["places"]
    places = torch.searchsorted(kept, places.contiguous())
    alike = ((ids == ids[:1]) & (mask == 1)).all(0)
    shared = min(int(alike.long().cumprod(0).sum()), int(kept[0]))
    if len(ids) == 1 or shared < _WORTH_SHARING:
        return model(input_ids=ids, attention_mask=mask, logits_to_keep=kept).logits, places
    known = model(input_ids=ids[:1, :shared], use_cache=True, logits_to_keep=1).past_key_values
    known.batch_repeat_interleave(len(ids))
    output = model(input_ids=ids[:, shared:], attention_mask=mask, past_key_values=known, logits_to_keep=kept - shared)
    return output.logits, places
