"""Log-probabilities of words at given positions of a prompt."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from headstart.core.data import Batch
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_LOGITS = 1 << 26
"""Logits per forward pass without gradients: 256 MB in float32."""
_MIN_SHARED_PREFIX = 32
"""Length in tokens from which on it pays to run a prefix that all rows share only once."""


def word_scores(model: PreTrainedModel, batch: Batch) -> list[Any]:
    """Return for each row the log-probabilities of its words, each the sum over its tokens.

    `targets` holds the words' tokens, shape (rows, words, tokens), padded with -100; `positions`, of the same shape,
    holds the positions that predict them. For an encoder-decoder these are positions in `labels`, its decoder's text.
    """
    has_option = "logits_to_keep" in inspect.signature(model.forward).parameters
    is_causal = has_option and not model.config.is_encoder_decoder
    written = batch.get("labels", batch["input_ids"])
    width = len(torch.unique(batch["positions"])) if is_causal else written.shape[1]
    chunk = max(1, MAX_LOGITS // (width * model.config.vocab_size))
    all_scores: list[Any] = []
    for start in range(0, len(batch["input_ids"]), chunk):
        part = {name: tensor[start : start + chunk] for name, tensor in batch.items()}
        logits, positions = _causal_logits(model, part) if is_causal else (_logits(model, part), part["positions"])
        rows = torch.arange(len(positions), device=positions.device)[:, None, None]
        log_probs = logits[rows, positions].float().log_softmax(-1)
        targets = part["targets"]
        scores = log_probs.gather(-1, targets.clamp(min=0)[..., None])[..., 0].masked_fill(targets == -100, 0.0).sum(-1)
        words = (targets[..., 0] != -100).sum(-1).tolist()
        all_scores += [row[:count] for row, count in zip(scores.cpu().numpy(), words, strict=True)]
    return all_scores


def _logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if model.config.is_encoder_decoder:
        network: Any = model
        inputs["decoder_input_ids"] = network.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    logits: torch.Tensor = model(**inputs).logits
    return logits


def _causal_logits(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a decoder's logits at the needed positions, and the index of each position among them.

    The examples that all prompts start with are run once and cached, since they are most of a prompt.
    """
    ids, mask = batch["input_ids"], batch["attention_mask"]
    kept = torch.unique(batch["positions"][batch["targets"] != -100])
    indices = torch.searchsorted(kept, batch["positions"].contiguous())
    same = ((ids == ids[:1]) & (mask == 1)).all(0)
    shared = min(int(same.long().cumprod(0).sum()), int(kept[0]))
    if len(ids) == 1 or shared < _MIN_SHARED_PREFIX:
        return model(input_ids=ids, attention_mask=mask, logits_to_keep=kept).logits, indices
    cache = model(input_ids=ids[:1, :shared], use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(ids))
    output = model(input_ids=ids[:, shared:], attention_mask=mask, past_key_values=cache, logits_to_keep=kept - shared)
    return output.logits, indices
