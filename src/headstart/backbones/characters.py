"""Tokens by their spelling: a convolution over characters, as ELMo reads words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

PADDING, BEGINNING, END = 0, 1, 2
_FIRST_BYTE = 3
NUM_SYMBOLS = _FIRST_BYTE + 256
EMBEDDING_SIZE = 16
_SHARES = {1: 1 / 16, 2: 1 / 16, 3: 1 / 8, 4: 1 / 4, 5: 1 / 2, 6: 1, 7: 2}
"""Filters by their width in characters, for each unit of the output: ELMo had 32, 32, 64 … 1024 over 512."""


def character_table(tokens: Sequence[str], longest: int = 50) -> torch.Tensor:
    """Spell each token in UTF-8 bytes between a sign for its beginning and one for its end, shape (tokens, width).

    Tokens are spelt as the tokenizer writes them, so that "##" or "Ġ" tells whether a word begins. The table is as
    wide as the longest token needs, 50 at most (ELMo's limit for a word), and as the widest filter at least.
    """
    spelt = [token.encode("utf-8", "surrogatepass")[: longest - 2] for token in tokens]
    width = max(len(spelling) for spelling in spelt) + 2
    table = torch.full((len(spelt), max(width, *_SHARES)), PADDING, dtype=torch.int16)
    for row, spelling in zip(table, spelt, strict=True):
        signs = [BEGINNING, *(byte + _FIRST_BYTE for byte in spelling), END]
        row[: len(signs)] = torch.tensor(signs)
    return table


class Highway(nn.Module):
    """A layer that keeps as much of its input as it has learnt to (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        """Make the two matrices, of what is new and of how much of the old is kept."""
        super().__init__()
        self.new, self.keep = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return a mixture of the input and of what became of it."""
        keep = self.keep(states).sigmoid()
        return keep * states + (1 - keep) * self.new(states).relu()


class CharacterInput(nn.Module):
    """Vectors of tokens out of their spelling: filters of 1 to 7 characters, their maximum, two highway layers.

    The spelling of every id is a table among the buffers, so the network reads ids and is saved whole. Each token of
    a batch is computed once, however often it stands there. FLOPs per token are counted on a single row, where fewer
    tokens repeat, and so are an upper bound.
    """

    def __init__(self, vocab_size: int, max_characters: int, output_size: int) -> None:
        """Make the layers; the table is empty until it is filled or loaded."""
        super().__init__()
        table = torch.full((vocab_size, max_characters), PADDING, dtype=torch.int16)
        self.register_buffer("table", table)
        self.symbols = nn.Embedding(NUM_SYMBOLS, EMBEDDING_SIZE)
        counts = {width: max(1, int(share * output_size)) for width, share in _SHARES.items()}
        # No ModuleList, whose members are compiled one by one: the number of different tokens is never the same.
        self.filters = nn.ModuleDict({str(w): nn.Conv1d(EMBEDDING_SIZE, count, w) for w, count in counts.items()})
        self.highways = nn.Sequential(*(Highway(sum(counts.values())) for _ in range(2)))
        self.output = nn.Linear(sum(counts.values()), output_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return a vector for each id, shape (rows, positions, output size)."""
        different, places = input_ids.unique(return_inverse=True)
        spelling = cast(torch.Tensor, self.table)[different].long()
        signs = self.symbols(spelling).transpose(1, 2)
        found = torch.cat([convolve(signs).amax(-1) for convolve in self.filters.values()], dim=-1)
        vectors: torch.Tensor = self.output(self.highways(found.relu()))
        return vectors[places]
