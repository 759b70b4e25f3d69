"""Initialization of a new network from word vectors (embeddings) and token frequencies (output bias)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from headstart.core.data import Ints


def embedding_width(model: PreTrainedModel, tokens: int) -> int | None:
    """Return the width of the network's token embeddings, or None if it has no embeddings for `tokens` tokens."""
    table = _weight_of(model.get_input_embeddings())
    return None if table is None or table.shape[0] < tokens else table.shape[1]


@torch.no_grad()
def start_embeddings(model: PreTrainedModel, vectors: npt.NDArray[np.float32]) -> None:
    """Set the embeddings of all tokens whose vector is not zero, scaled to the mean norm of the current embeddings."""
    table = _weight_of(model.get_input_embeddings())
    assert table is not None, "call embedding_width first"
    known = torch.from_numpy(np.flatnonzero(np.abs(vectors).sum(axis=1)))
    scale = table[known].norm(dim=1).mean()
    table[known] = scale * torch.from_numpy(vectors)[known].to(table)


@torch.no_grad()
def start_output(model: PreTrainedModel, counts: Ints) -> None:
    """Set the output bias, if any, to the log frequencies of tokens, so the loss starts at the unigram entropy.

    Tokens that an objective added have no count; one is added to every count.
    """
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.shape[0] < len(counts):
        return
    smoothed = torch.ones(bias.shape[0], dtype=torch.float64)
    smoothed[: len(counts)] += torch.from_numpy(np.asarray(counts, dtype=np.float64))
    bias.copy_((smoothed / smoothed.sum()).log())


def _weight_of(table: torch.nn.Module | None) -> torch.Tensor | None:
    weight = getattr(table, "weight", None)
    return weight if isinstance(weight, torch.Tensor) and weight.ndim == 2 else None
