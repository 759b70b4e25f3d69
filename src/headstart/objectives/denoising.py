"""Denoising: corrupt a text in several ways, and let an encoder-decoder reconstruct it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.data import Batch, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives import noise
from headstart.objectives.base import ObjectiveCollator
from headstart.objectives.one_row import OneRowObjective, OneRowSettings


class Denoising(OneRowObjective):
    """Reconstruct a corrupted text: shuffled sentences, masked spans, deleted tokens (BART).

    The encoder reads the corrupted row, padded to the length of the row, and the decoder generates the original row
    without its [CLS] and its language. [CLS], [SEP] and padding are kept, sentences and tokens stay within their
    document, and an unknown token is neither masked, deleted nor predicted. BART used text infilling at 30 % and
    shuffled all sentences. `rate` applies to each noise that masks or deletes tokens, relative to what the previous
    noises left.

    A decoder reads the corrupted row and then the original, padded at the end, and predicts the original; with
    `bidirectional_prefix` it reads the corrupted row with bidirectional attention.
    """

    paper: ClassVar[str] = "Lewis et al. 2020, BART"

    class Config(OneRowSettings):
        """The noise functions, their order and their strength."""

        name: Literal["denoising"] = "denoising"
        noise: list[Literal["token_mask", "token_delete", "infill", "sentence_shuffle", "rotate"]] = Field(
            ["sentence_shuffle", "infill"], min_length=1, description="applied in this order; BART used the default"
        )
        rate: float = Field(0.3, gt=0, lt=1, description="fraction of a row's tokens to mask or delete; BART used 0.3")
        poisson: float = Field(3.0, ge=0.1, le=64, description="mean length of an infilled span; BART used 3")
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or Denoising.Config(**settings)
        self.set_family()

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] … [SEP]` with [SEP] between documents, with sentence starts if sentences are shuffled."""
        # A decoder reads the corrupted row and the original without [CLS], of `seq_length` tokens at most together.
        length = max((seq_length + 1) // 2, 4) if self.is_decoder else seq_length
        return RowShape(length, sentence_starts="sentence_shuffle" in self.config.noise)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Corrupt each row; returns input_ids, attention_mask, labels and weights (0 where nothing is predicted).

        Without sentence starts, each document counts as one sentence, and shuffling does not change it.
        """
        inputs = np.full_like(rows.ids, vocabulary.pad)  # (rows, length)
        attention = np.zeros_like(rows.ids)
        for row, sample in enumerate(rows.samples):
            sentences = rows.sentence_starts[row] if rows.sentence_starts else np.zeros(0, dtype=np.int64)
            layout = noise.Layout.of(rows.ids[row], sentences, vocabulary)
            columns = np.arange(rows.ids.shape[1])
            rng = generator(seed, sample.epoch, sample.index, "denoising")
            for name in self.config.noise:
                columns = self._apply(name, columns, layout, rng)
            shown, is_masked = rows.ids[row, columns], columns == noise.MASKED
            inputs[row, : len(columns)] = (
                np.where(is_masked, vocabulary.require("mask"), shown) if is_masked.any() else shown
            )
            attention[row, : len(columns)] = 1
        labels = rows.ids[:, _frame_width(rows.ids, vocabulary) :].copy()
        predicted = ~vocabulary.special[labels] | (labels == vocabulary.sep)
        arrays = {
            "input_ids": inputs,
            "attention_mask": attention,
            "labels": labels,
            "weights": predicted.astype(np.float32),
        }
        if self.is_decoder:
            arrays = self._in_one_row(vocabulary.pad, **arrays)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def collator(self, tokenizer: Any, seed: int = 0) -> ObjectiveCollator:
        """Return a collator; its examples have no sentence starts, so sentence_shuffle has no effect."""
        if set(self.config.noise) == {"sentence_shuffle"}:
            raise RecipeError(
                "`objective.noise` is only sentence_shuffle, but the examples of a collator have no sentence starts",
                do="Add another noise, or pre-train with `headstart pretrain`, which detects sentences",
            )
        return super().collator(tokenizer, seed)

    def _in_one_row(self, pad: int, input_ids: Any, attention_mask: Any, labels: Any, weights: Any) -> dict[str, Any]:
        """Return the batch of a decoder: the corrupted row, then the original, then padding."""
        count, width = len(input_ids), input_ids.shape[1] + labels.shape[1]
        ids = np.full((count, width), pad, dtype=np.int64)
        attention, predicted = np.zeros_like(ids), np.zeros((count, width), dtype=np.float32)
        starts = attention_mask.sum(1)  # (rows,)
        for row, start in enumerate(starts):
            end = start + labels.shape[1]
            ids[row, :start], ids[row, start:end] = input_ids[row, :start], labels[row]
            attention[row, :end], predicted[row, start:end] = 1, weights[row]
        arrays = {"input_ids": ids, "attention_mask": attention, "labels": ids, "weights": predicted}
        return arrays | ({"prefixes": starts} if self.config.bidirectional_prefix else {})

    def _apply(self, name: str, columns: Ints, layout: noise.Layout, rng: np.random.Generator) -> Ints:
        match name:
            case "token_mask":
                return noise.mask_tokens(columns, layout, self.config.rate, rng)
            case "token_delete":
                return noise.delete_tokens(columns, layout, self.config.rate, rng)
            case "infill":
                return noise.infill_spans(columns, layout, self.config.rate, self.config.poisson, rng)
            case "sentence_shuffle":
                return noise.shuffle_sentences(columns, layout, rng)
            case _:
                return noise.rotate_documents(columns, layout, rng)


def _frame_width(ids: Ints, vocabulary: Vocabulary) -> int:
    """Return the number of columns with [CLS] and the language; the blocks of a script may have neither."""
    width = int((ids[:, 0] == vocabulary.cls).all())
    return width + int(np.isin(ids[:, width], list(vocabulary.added.values())).all())
