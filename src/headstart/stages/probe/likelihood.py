"""The likelihood of texts: of decoders by the chain rule, of encoders the pseudo-likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from headstart.core.data import InputSpec
from headstart.objectives.masked_lm import masked_logits
from headstart.stages.probe.network import ProbedNetwork
from headstart.tasks.framing import frame, start_token

_BATCH_TOKENS = 8192
_LEAST_FILLED = 0.75
"""The length of the shortest item of a batch as a part of the longest: the rest is padding, which costs as much."""
_FEWEST_TOKENS = 256
"""Smaller batches are not divided: their cost is that of reading the weights."""
MAX_LOGITS = 1 << 26
"""Logits per forward pass: 256 MB in float32."""
T = TypeVar("T")


@dataclass(frozen=True)
class _MaskedRow:
    """One input of an encoder: the text with some tokens masked, of which one is predicted."""

    text: int
    ids: list[int]
    position: int
    label: int


def log_likelihoods(network: ProbedNetwork, texts: Sequence[str]) -> list[float]:
    """Return the log-likelihood of each text in nats; NaN for a text that is too long for the network.

    Texts with the same tokens have exactly the same value.

    Algorithm:
        A decoder predicts every token from those before it, the first one from the token that starts a text. An encoder
        predicts every token with that token and the later tokens of the same word masked. Without the latter, the rest
        of a rare word gives it away, and long words look likely.

    Papers: Salazar et al. 2020, pseudo-likelihood; Kauf & Ivanova 2023, the correction within words
    """
    encoded = network.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    prefix, suffix = frame(network.tokenizer)
    index_of: dict[tuple[int, ...], int] = {}
    words: list[list[int | None]] = []
    for i, ids in enumerate(encoded["input_ids"]):
        fits = max(1, len(prefix)) + len(ids) + len(suffix) <= network.max_length
        if fits and tuple(ids) not in index_of:
            index_of[tuple(ids)] = len(words)
            words.append(encoded.word_ids(i) if network.family == "encoder" else [])
    distinct = [list(ids) for ids in index_of]
    with torch.inference_mode():
        if network.family == "encoder":
            values = _pseudo(network, distinct, words, prefix, suffix)
        else:
            values = _causal(network, distinct)
    return [values[index_of[tuple(ids)]] if tuple(ids) in index_of else math.nan for ids in encoded["input_ids"]]


def _pseudo(
    network: ProbedNetwork, texts: list[list[int]], words: list[list[int | None]], prefix: list[int], suffix: list[int]
) -> list[float]:
    mask = int(network.tokenizer.mask_token_id)  # type: ignore[arg-type]  # encoders have one
    rows = [
        _MaskedRow(i, [*prefix, *_masked(ids, words[i], position, mask), *suffix], len(prefix) + position, label)
        for i, ids in enumerate(texts)
        for position, label in enumerate(ids)
    ]
    totals = [0.0] * len(texts)
    for part in token_batches(rows, [len(row.ids) for row in rows], MAX_LOGITS // network.model.config.vocab_size):
        batch = network.batch([row.ids for row in part])
        batch["positions"] = torch.tensor([[row.position] for row in part], device=network.device)
        labels = torch.tensor([row.label for row in part], device=network.device)
        log_probs = label_log_probs(masked_logits(network.model, batch)[:, 0].float(), labels)
        for row, value in zip(part, log_probs.double().tolist(), strict=True):
            totals[row.text] += value
    return totals


def label_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each label.

    On a CPU, `log_softmax` sums the terms of a large vocabulary with six times the rounding error of `logsumexp`.
    """
    return logits.gather(-1, labels[..., None])[..., 0] - logits.logsumexp(-1)


def _masked(ids: list[int], words: list[int | None], position: int, mask: int) -> list[int]:
    """Return a text with the token at a position and the later tokens of its word masked."""
    return [
        mask if i == position or (i > position and word is not None and word == words[position]) else token
        for i, (token, word) in enumerate(zip(ids, words, strict=True))
    ]


def _causal(network: ProbedNetwork, texts: list[list[int]]) -> list[float]:
    start = start_of(network)
    totals = [0.0] * len(texts)
    longest = len(start) + max(map(len, texts), default=0)
    most = MAX_LOGITS // (network.model.config.vocab_size * longest)
    for part in token_batches(range(len(texts)), [len(start) + len(ids) for ids in texts], most):
        batch = network.batch([[*start, *texts[i]] for i in part])
        logits = network.model(**batch, use_cache=False).logits[:, len(start) - 1 : -1].float()
        labels = batch["input_ids"][:, len(start) :]
        log_probs = label_log_probs(logits, labels)
        counted = batch["attention_mask"][:, len(start) :]
        for i, value in zip(part, (log_probs.double() * counted).sum(1).tolist(), strict=True):
            totals[i] = value
    return totals


def start_of(network: ProbedNetwork) -> list[int]:
    """Return the tokens before a text that a decoder reads: those that its tokenizer adds, or else one."""
    prefix, _ = frame(network.tokenizer)
    return prefix or [start_token(InputSpec(network.tokenizer, network.family, network.max_length))]


def token_batches(items: Sequence[T], lengths: Sequence[int], most: int) -> Iterator[list[T]]:
    """Yield items of similar length together, within a budget of padded tokens and at most `most` of them."""
    part: list[T] = []
    longest = 0
    for i in sorted(range(len(items)), key=lambda i: -lengths[i]):
        is_full = len(part) >= most or (len(part) + 1) * longest > _BATCH_TOKENS
        is_shorter = lengths[i] < _LEAST_FILLED * longest and len(part) * longest >= _FEWEST_TOKENS
        if part and (is_full or is_shorter):
            yield part
            part = []
        longest = longest if part else lengths[i]
        part.append(items[i])
    if part:
        yield part
