"""What a new network can know before its first step: vectors of its tokens, and how often each occurs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from headstart.core.data import Ints


def embedding_width(model: PreTrainedModel, tokens: int) -> int | None:
    """Return the width of the network's table of token vectors; None where it has none with so many rows."""
    table = _weight_of(model.get_input_embeddings())
    return None if table is None or table.shape[0] < tokens else table.shape[1]


@torch.no_grad()
def start_embeddings(model: PreTrainedModel, vectors: npt.NDArray[np.float32]) -> None:
    """Overwrite the rows of the tokens whose vector is not zero, scaled to the length of the rows that stand there."""
    table = _weight_of(model.get_input_embeddings())
    assert table is not None, "embedding_width comes first"
    known = torch.from_numpy(np.flatnonzero(np.abs(vectors).sum(axis=1)))
    scale = table[known].norm(dim=1).mean()
    table[known] = scale * torch.from_numpy(vectors)[known].to(table)


@torch.no_grad()
def start_output(model: PreTrainedModel, counts: Ints) -> None:
    """Let the output's bias, where there is one over tokens, say how often each occurs: the loss starts at unigrams'.

    Tokens that an objective added have no count; they are taken to occur once.
    """
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.shape[0] < len(counts):
        return
    seen = torch.ones(bias.shape[0], dtype=torch.float64)
    seen[: len(counts)] += torch.from_numpy(np.asarray(counts, dtype=np.float64))
    bias.copy_((seen / seen.sum()).log())


def _weight_of(table: torch.nn.Module | None) -> torch.Tensor | None:
    weight = getattr(table, "weight", None)
    return weight if isinstance(weight, torch.Tensor) and weight.ndim == 2 else None
