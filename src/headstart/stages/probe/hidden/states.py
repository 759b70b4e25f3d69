"""Hidden states of words: for each layer, the mean over the tokens of each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headstart.core.errors import ArtifactError, DataError
from headstart.stages.probe.attention_maps import tokenize_words
from headstart.stages.probe.likelihood import token_batches
from headstart.stages.probe.network import ProbedNetwork

States = npt.NDArray[np.float32]
MOST_LAYERS = 13
"""Layers that are read of a deep network, evenly spaced; all of a network with 12 layers and the embeddings."""
_MAX_ROWS = 64


@dataclass(frozen=True)
class WordStates:
    """The states of the words of some sentences after some layers; sentences that do not fit the network are absent."""

    layers: list[int]
    """Which layers: 0 is the embeddings, the last one the output of the network."""
    values: States
    """(layers, words, hidden)"""
    sentences: npt.NDArray[np.int64]
    """(words,): the index of the sentence of each word."""
    positions: npt.NDArray[np.int64]
    """(words,): the index of each word in its sentence."""

    def keys(self) -> list[tuple[int, int]]:
        """Return sentence and position of each word, which identify it for any network."""
        return list(zip(self.sentences.tolist(), self.positions.tolist(), strict=True))


def spaced_layers(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` layers, evenly spaced, with the first and the last one."""
    return sorted({round(layer) for layer in np.linspace(0, count - 1, min(count, most)).tolist()})


def word_states(network: ProbedNetwork, sentences: Sequence[Sequence[str]], source: str) -> WordStates:
    """Run sentences of words through a network and return the states of all words, in the order of the sentences.

    Of an encoder-decoder the encoder is run. A word of a decoder has seen only the words before it.

    Args:
        network: the network.
        sentences: the words of each sentence.
        source: what an error calls the sentences.
    """
    tokenized = [(i, tokenize_words(network, words)) for i, words in enumerate(sentences)]
    usable = [(i, sentence) for i, sentence in tokenized if sentence is not None]
    if not usable:
        raise DataError(f"no sentence of {source} fits {network.name}", do="Pass shorter sentences")
    lengths = [len(sentence.ids) for _, sentence in usable]
    layers: list[int] = []
    parts: list[States] = [np.empty(0, np.float32)] * len(usable)
    for indices in token_batches(range(len(usable)), lengths, _MAX_ROWS):
        hidden = _hidden_states(network, [usable[k][1].ids for k in indices])
        layers = layers or spaced_layers(len(hidden), MOST_LAYERS)
        stacked = torch.stack([hidden[layer] for layer in layers]).float().cpu().numpy()  # (layers, rows, length, d)
        for row, k in enumerate(indices):
            words = usable[k][1].words
            parts[k] = np.stack([stacked[:, row, tokens].mean(1) for tokens in words], 1)  # (layers, words, d)
    counts = [part.shape[1] for part in parts]
    owners = np.repeat(np.array([i for i, _ in usable]), counts)
    positions = np.concatenate([np.arange(count) for count in counts])
    return WordStates(layers, np.concatenate(parts, 1), owners, positions)


def _hidden_states(network: ProbedNetwork, rows: list[list[int]]) -> Sequence[torch.Tensor]:
    """Return the states (rows, length, hidden) of the embeddings and after each layer."""
    model: Any = network.model
    body = model.get_encoder() if network.family == "encoder-decoder" else model.base_model
    with torch.inference_mode():
        hidden = body(**network.batch(rows), output_hidden_states=True).hidden_states
    if not hidden:
        raise ArtifactError(f"the network of {network.name} returns no hidden states", do="Leave out this probe")
    return list(hidden)
