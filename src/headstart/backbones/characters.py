"""Token vectors from spelling: a character-level convolution, as in ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

PADDING, START, END = 0, 1, 2
_FIRST_BYTE = 3
NUM_SYMBOLS = _FIRST_BYTE + 256
EMBEDDING_SIZE = 16
_FILTERS = {1: 1 / 16, 2: 1 / 16, 3: 1 / 8, 4: 1 / 4, 5: 1 / 2, 6: 1, 7: 2}
"""Number of filters per output unit, by filter width in characters; ELMo had 32, 32, 64 … 1024 for 512 units."""


def character_table(tokens: Sequence[str], longest: int = 50) -> torch.Tensor:
    """Return the UTF-8 bytes of each token between a start and an end symbol, shape (tokens, width).

    Tokens are spelled as in the tokenizer, so "##" or "Ġ" shows whether a word starts. The width is that of the longest
    token, at most 50 (ELMo's limit for a word) and at least the width of the widest filter.
    """
    spellings = [token.encode("utf-8", "surrogatepass")[: longest - 2] for token in tokens]
    width = max(len(spelling) for spelling in spellings) + 2
    table = torch.full((len(spellings), max(width, *_FILTERS)), PADDING, dtype=torch.int16)
    for row, spelling in zip(table, spellings, strict=True):
        symbols = [START, *(byte + _FIRST_BYTE for byte in spelling), END]
        row[: len(symbols)] = torch.tensor(symbols)
    return table


class Highway(nn.Module):
    """A highway layer: a gate mixes its input with a nonlinear transformation of it (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        """Create the transformation and the gate."""
        super().__init__()
        self.new, self.keep = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the gated mixture of the input and its transformation."""
        keep = self.keep(states).sigmoid()
        return keep * states + (1 - keep) * self.new(states).relu()


class CharacterInput(nn.Module):
    """Token vectors from characters: filters of 1 to 7 characters, max pooling and two highway layers.

    The spelling of every id is stored in a buffer, so the network reads ids and its checkpoint is complete. Each
    distinct token of a batch is computed once. FLOPs per token are counted on a single row, where fewer tokens repeat,
    so they are an upper bound.
    """

    def __init__(self, vocab_size: int, max_characters: int, output_size: int) -> None:
        """Create the layers; the table contains only padding until it is set or loaded."""
        super().__init__()
        table = torch.full((vocab_size, max_characters), PADDING, dtype=torch.int16)
        self.register_buffer("table", table)
        self.symbols = nn.Embedding(NUM_SYMBOLS, EMBEDDING_SIZE)
        counts = {width: max(1, int(per_unit * output_size)) for width, per_unit in _FILTERS.items()}
        # Not a ModuleList, whose members are compiled one by one: the number of distinct tokens varies per batch.
        self.filters = nn.ModuleDict({str(w): nn.Conv1d(EMBEDDING_SIZE, count, w) for w, count in counts.items()})
        self.highways = nn.Sequential(*(Highway(sum(counts.values())) for _ in range(2)))
        self.output = nn.Linear(sum(counts.values()), output_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return a vector for each id, shape (rows, positions, output_size)."""
        unique_ids, inverse = input_ids.unique(return_inverse=True)
        spelling = cast(torch.Tensor, self.table)[unique_ids].long()
        symbols = self.symbols(spelling).transpose(1, 2)  # (tokens, embedding, characters)
        pooled = torch.cat([convolution(symbols).amax(-1) for convolution in self.filters.values()], dim=-1)
        vectors: torch.Tensor = self.output(self.highways(pooled.relu()))
        return vectors[inverse]
