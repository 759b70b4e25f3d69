"""Texts → vectors of length one, in batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from headstart.stages.runs.flops import counting_flops
from headstart.stages.search.encoder import open_encoder
from headstart.stages.search.recipe import BATCH_TOKENS
from headstart.tasks.source import require_checkpoint
from headstart.training import precision

_COUNTED = ["The FLOPs of a text with this many tokens are counted once and used for all other texts."]


class Embedder:
    """A model that embeds texts: a folder of sentence-transformers, or any Hugging Face folder with mean pooling."""

    def __init__(self, model: str | Path, number_format: str = "auto") -> None:
        """Load the folder onto the available device, with weights in the given number format."""
        self.device = precision.default_device()
        self.number_format = precision.resolve(number_format, self.device)
        self.encoder = open_encoder(require_checkpoint(model), self.device, precision.dtype(self.number_format))

    def vectors(self, texts: list[str], batch_tokens: int = BATCH_TOKENS) -> npt.NDArray[np.float32]:
        """Return one row per text; texts of similar length share a forward pass."""
        lengths, rows = self._lengths(texts), []
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        for batch in _batches([lengths[i] for i in order], batch_tokens):
            rows.append(self.encoder.encode([texts[i] for i in order[batch]]).float().cpu().numpy())
        vectors: npt.NDArray[np.float32] = np.concatenate(rows)
        vectors[order] = vectors.copy()
        return vectors

    def tokens(self, texts: list[str]) -> int:
        """Return the number of tokens that the model reads of the texts."""
        return self.encoder.count_tokens(texts)

    @cached_property
    def flops_per_token(self) -> float:
        """The FLOPs per token, as torch counts them on one text."""
        with counting_flops() as counter:
            self.vectors(_COUNTED)
        return float(counter.get_total_flops()) / self.tokens(_COUNTED)

    def _lengths(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text; 1 for a model that does not pad."""
        tokenizer, max_length = self.encoder.tokenizer, self.encoder.max_length
        if max_length is None or not isinstance(tokenizer, PreTrainedTokenizerBase):
            return [1] * len(texts)
        encoded = tokenizer(
            texts, truncation=True, max_length=max_length, return_attention_mask=False, return_token_type_ids=False
        )
        return [len(ids) for ids in encoded["input_ids"]]


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[slice]:
    """Yield slices of sorted lengths with at most `tokens` tokens when padded, or with a single text."""
    start = 0
    for stop, length in enumerate(lengths):
        if stop > start and (stop + 1 - start) * length > tokens:
            yield slice(start, stop)
            start = stop
    if start < len(lengths):
        yield slice(start, len(lengths))
