"""Texts → vectors of length one, by a folder of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerBase

from headstart.tasks.sentence_vectors import library
from headstart.tasks.source import require_checkpoint
from headstart.training import precision

BATCH_TOKENS = 2048
"""Tokens in one forward pass: enough to keep a core busy, few enough to stay in its cache (1,024 to 4,096 do as well,
16,384 takes a third longer on sentences of 33 tokens)."""
_COUNTED = ["What a text of this many tokens costs is counted once, and holds for the others."]


class Embedder:
    """A model that embeds, as sentence-transformers reads its folder: any Hugging Face folder is averaged."""

    def __init__(self, model: str | Path, number_format: str = "auto") -> None:
        """Load the folder onto the device that there is, the weights in the number format once and for all."""
        self.device = precision.default_device()
        self.number_format = precision.resolve(number_format, self.device)
        self.model = library("model").SentenceTransformer(
            str(require_checkpoint(model)),
            device=str(self.device),
            model_kwargs={"dtype": precision.dtype(self.number_format)},
        )

    def vectors(self, texts: list[str], batch_tokens: int = BATCH_TOKENS) -> npt.NDArray[np.float32]:
        """Return one row for each text; texts of like length go through the model together."""
        lengths, rows = self._lengths(texts), []
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        for batch in _batches([lengths[place] for place in order], batch_tokens):
            chosen = [texts[place] for place in order[batch]]
            found: Any = self.model.encode(
                chosen, batch_size=len(chosen), normalize_embeddings=True, show_progress_bar=False,
                convert_to_tensor=True,
            )  # fmt: skip
            rows.append(found.float().cpu().numpy())
        vectors: npt.NDArray[np.float32] = np.concatenate(rows)
        vectors[order] = vectors.copy()
        return vectors

    def tokens(self, texts: list[str]) -> int:
        """Return how many tokens the model reads of some texts."""
        features = self.model.preprocess(texts)
        return int(features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel())

    @cached_property
    def flops_per_token(self) -> float:
        """Return what a token costs, as torch counts it on a text."""
        with FlopCounterMode(display=False) as counter:
            self.vectors(_COUNTED)
        return float(counter.get_total_flops()) / self.tokens(_COUNTED)

    def _lengths(self, texts: list[str]) -> list[int]:
        """Return how many tokens the model reads of each text; one where it has no network that would be padded."""
        tokenizer, longest = self.model.tokenizer, self.model.max_seq_length
        if longest is None or not isinstance(tokenizer, PreTrainedTokenizerBase):
            return [1] * len(texts)
        read = tokenizer(
            texts, truncation=True, max_length=longest, return_attention_mask=False, return_token_type_ids=False
        )
        return [len(ids) for ids in read["input_ids"]]


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[slice]:
    """Yield stretches of rising lengths that hold at most so many tokens when padded, and one text at the least."""
    start = 0
    for stop, length in enumerate(lengths):
        if stop > start and (stop + 1 - start) * length > tokens:
            yield slice(start, stop)
            start = stop
    if start < len(lengths):
        yield slice(start, len(lengths))
