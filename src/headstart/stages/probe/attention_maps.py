"""Attention maps of sentences: over tokens, as the network computes them, and over words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headstart.core.errors import ArtifactError
from headstart.stages.probe.likelihood import start_of, token_batches
from headstart.stages.probe.network import ProbedNetwork
from headstart.tasks.framing import frame

Maps = npt.NDArray[np.float64]
HEAD_MEASURES = ("first", "last", "previous", "next", "self", "entropy", "top_previous", "top_next")
_MAX_ROWS = 16


@dataclass(frozen=True)
class WordTokens:
    """A sentence as a network reads it: its tokens, and for each word the positions of its tokens."""

    ids: list[int]
    words: list[list[int]]


def tokenize_words(network: ProbedNetwork, words: Sequence[str]) -> WordTokens | None:
    """Return the tokens of a sentence, or None if it is too long or a word has no token.

    The words are joined by spaces, as the network would read the sentence. A token belongs to the word of its last
    character.
    """
    prefix, suffix = frame(network.tokenizer)
    # A classifier was trained on texts as its tokenizer frames them.
    if network.family == "decoder" and network.outputs is None:
        prefix, suffix = start_of(network), []
    encoded = network.tokenizer(
        " ".join(words), add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )  # fmt: skip
    ends = np.cumsum([len(word) + 1 for word in words])
    positions: list[list[int]] = [[] for _ in words]
    for i, (_, end) in enumerate(encoded["offset_mapping"]):
        word = int(np.searchsorted(ends, max(end - 1, 0), side="right"))
        positions[min(word, len(words) - 1)].append(len(prefix) + i)
    ids = [*prefix, *encoded["input_ids"], *suffix]
    return WordTokens(ids, positions) if all(positions) and len(ids) <= network.max_length else None


def attention_maps(network: ProbedNetwork, sentences: Sequence[WordTokens]) -> Iterator[tuple[int, Maps]]:
    """Yield the index of each sentence and its maps, shape (layers, heads, tokens, tokens); rows sum to one."""
    lengths = [len(sentence.ids) for sentence in sentences]
    model: Any = network.model
    for indices in token_batches(range(len(sentences)), lengths, _MAX_ROWS):
        with torch.inference_mode():
            output = model.base_model(**network.batch([sentences[i].ids for i in indices]), output_attentions=True)
        if not output.attentions:
            raise ArtifactError(
                f"the network of {network.name} returns no attention maps", do="Leave out the probe `attention`"
            )
        maps = torch.stack(output.attentions, 1).double().cpu().numpy()  # (rows, layers, heads, length, length)
        for row, i in enumerate(indices):
            yield i, maps[row, :, :, : lengths[i], : lengths[i]]


def over_words(maps: Maps, words: Sequence[Sequence[int]]) -> Maps:
    """Return maps over words, shape (layers, heads, words, words).

    The attention to a word is the sum over its tokens, that of a word the mean over its tokens. Attention to special
    tokens is left out, so rows sum to less than one.

    Paper: Clark et al. 2019, What Does BERT Look At?
    """
    belongs = np.zeros((len(words), maps.shape[-1]))
    for word, positions in enumerate(words):
        belongs[word, list(positions)] = 1.0
    mean = belongs / belongs.sum(1, keepdims=True)
    merged: Maps = mean @ maps @ belongs.T
    return merged


def most_attended(word_maps: Maps) -> npt.NDArray[np.int64]:
    """Return for each head and word the other word that it attends to most, shape (layers, heads, words).

    It is -1 for a word that attends to no other word, as the first word in a decoder.
    """
    others = word_maps.copy()
    diagonal = np.arange(others.shape[-1])
    others[..., diagonal, diagonal] = -1.0
    return np.where(others.max(-1) > 0, others.argmax(-1), -1)


def head_measures(maps: Maps, words: Sequence[Sequence[int]]) -> Maps:
    """Return what each head does in a sentence, shape (layers, heads, measures), in the order of `HEAD_MEASURES`.

    Means over the tokens of words: the attention to the first token of the input ([CLS], or the start of a text), to
    its last token ([SEP], in encoders), to the previous token, the next one and the token itself; the entropy in nats.
    Then, over words: how often the most attended other word is the previous one, and the next one.
    """
    length = maps.shape[-1]
    rows = np.array(sorted(position for positions in words for position in positions))
    attention = maps[:, :, rows]  # (layers, heads, rows, length)

    def share(columns: npt.NDArray[np.int64]) -> Maps:
        inside = (columns >= 0) & (columns < length)
        values: Maps = attention[:, :, np.arange(len(rows)), columns.clip(0, length - 1)] * inside
        return values.mean(-1)

    entropy = -(attention * np.log(np.maximum(attention, 1e-30))).sum(-1).mean(-1)
    top, index = most_attended(over_words(maps, words)), np.arange(len(words))
    offsets = [((top == index + offset)[..., max(0, -offset) : len(words) - max(0, offset)]) for offset in (-1, 1)]
    hits = [part.mean(-1) if part.shape[-1] else np.zeros(maps.shape[:2]) for part in offsets]
    columns = (np.zeros_like(rows), np.full_like(rows, length - 1), rows - 1, rows + 1, rows)
    return np.stack([*map(share, columns), entropy, *hits], -1)
