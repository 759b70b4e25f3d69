"""LAMBADA: the last word of a passage, which people guess from the whole passage only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headstart.objectives.chunked import head_logits
from headstart.stages.probe.likelihood import MAX_LOGITS, start_of, token_batches
from headstart.stages.probe.network import ProbedNetwork


def predicts_last_words(network: ProbedNetwork, texts: Sequence[str]) -> list[float]:
    """Return 1 for each text whose last word is the most likely continuation of the text before it, else 0.

    A word of several tokens is predicted if each of them is the most likely one after those before it. The beginning of
    a passage that is too long is cut off.
    """
    start = start_of(network)
    rows, lengths = [], []
    for text in texts:
        context, _, word = text.rstrip().rpartition(" ")
        before, both = (network.encode(part) for part in (context, f"{context} {word}"))
        same = next((i for i, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(before))
        rows.append([*start, *both[max(0, len(both) + len(start) - network.max_length) :]])
        lengths.append(len(both) - same)
    hits = [1.0] * len(rows)
    longest = max(map(len, rows), default=1)
    most = MAX_LOGITS // (network.model.config.vocab_size * longest)
    for indices in token_batches(range(len(rows)), [len(row) for row in rows], most):
        batch = network.batch([rows[i] for i in indices])
        places = [(i, at) for i, index in enumerate(indices) for at in _before_last_word(rows[index], lengths[index])]
        with torch.inference_mode():
            states = network.model.base_model(**batch, use_cache=False)[0]
            # Logits of the last words alone, because a large vocabulary makes them costly.
            chosen = states[[i for i, _ in places], [at for _, at in places]]
            best = head_logits(network.model, chosen[None])[0].argmax(-1).tolist()
        for (i, at), token in zip(places, best, strict=True):
            if token != rows[indices[i]][at + 1]:
                hits[indices[i]] = 0.0
    return hits


def _before_last_word(row: Sequence[int], count: int) -> range:
    """Return the positions at which a decoder predicts the `count` tokens of the last word."""
    return range(max(0, len(row) - count - 1), len(row) - 1)


def chance_of_a_word(text: str) -> float:
    """Return how often a word drawn at random from a passage is its last word."""
    context, _, word = text.rstrip().rpartition(" ")
    words = [part.strip(".,;:!?\"'`") for part in context.split()]
    return words.count(word) / len(words) if words else 0.0
