"""Denoising: damage a text in several ways, and let an encoder-decoder write it as it was."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import generator
from headstart.objectives import noise
from headstart.objectives.base import ObjectiveCollator
from headstart.objectives.chunked import TextObjective


class Denoising(TextObjective):
    """Write a damaged text as it was: sentences shuffled, spans behind one mask, tokens dropped.

    The encoder reads what the noises leave of a row, padded to the row's length, and the decoder writes the whole row
    but its [CLS], which tells nothing. [CLS], [SEP] and padding stay, sentences and tokens move within their document
    alone, and an unknown token is neither hidden, dropped nor predicted. BART used text infilling at 30 % and shuffled
    all sentences; `rate` holds for each noise that hides or drops tokens, of those that the ones before it left.
    """

    paper: ClassVar[str] = "Lewis et al. 2020, BART"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    class Config(Section):
        """Which noises, in which order, and how strong."""

        name: Literal["denoising"] = "denoising"
        noise: list[Literal["token_mask", "token_delete", "infill", "sentence_shuffle", "rotate"]] = Field(
            ["sentence_shuffle", "infill"], min_length=1, description="applied in this order; BART used the default"
        )
        rate: float = Field(0.3, gt=0, lt=1, description="share of a row's tokens to hide or drop; BART used 0.3")
        poisson: float = Field(3.0, ge=0.1, le=64, description="mean length of an infilled span; BART used 3")
        chunk: int = Field(512, ge=1, description="positions whose logits stand in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or Denoising.Config(**settings)

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for `[CLS] … [SEP]` with [SEP] between documents, and for the sentences where they are shuffled."""
        return RowShape(seq_length, sentences="sentence_shuffle" in self.config.noise)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Damage each row; returns input_ids and attention_mask, and labels and weights (0 where none is predicted).

        Where the rows come without sentences, each document counts as one, and shuffling leaves it as it is.
        """
        shown = np.full_like(rows.ids, vocabulary.pad)
        seen = np.zeros_like(rows.ids)
        for row, sample in enumerate(rows.samples):
            sentences = rows.sentences[row] if rows.sentences else np.zeros(0, dtype=np.int64)
            layout = noise.Layout.of(rows.ids[row], sentences, vocabulary)
            columns = np.arange(rows.ids.shape[1])
            chance = generator(seed, sample.epoch, sample.index, "denoising")
            for name in self.config.noise:
                columns = self._damage(name, columns, layout, chance)
            shown[row, : len(columns)] = np.where(columns == noise.HIDDEN, vocabulary.mask, rows.ids[row, columns])
            seen[row, : len(columns)] = 1
        # Packed rows open with [CLS]; a script's blocks may not.
        labels = rows.ids[:, int((rows.ids[:, 0] == vocabulary.cls).all()) :].copy()
        counted = ~vocabulary.special[labels] | (labels == vocabulary.sep)
        arrays = {"input_ids": shown, "attention_mask": seen, "labels": labels, "weights": counted.astype(np.float32)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, by the encoder and by the decoder."""
        return batch["input_ids"].numel() + batch["labels"].numel()

    def collator(self, tokenizer: Any, seed: int = 0) -> ObjectiveCollator:
        """Return a collator; its examples have no sentences, so that sentence_shuffle does nothing there."""
        if set(self.config.noise) == {"sentence_shuffle"}:
            raise RecipeError(
                "objective.noise is sentence_shuffle alone, and a collator's examples do not say where sentences start",
                do="Add another noise, or pre-train with `headstart pretrain`, which knows the sentences",
            )
        return super().collator(tokenizer, seed)

    def _damage(self, name: str, columns: Ints, layout: noise.Layout, chance: np.random.Generator) -> Ints:
        match name:
            case "token_mask":
                return noise.hide_tokens(columns, layout, self.config.rate, chance)
            case "token_delete":
                return noise.delete_tokens(columns, layout, self.config.rate, chance)
            case "infill":
                return noise.fill_spans(columns, layout, self.config.rate, self.config.poisson, chance)
            case "sentence_shuffle":
                return noise.shuffle_sentences(columns, layout, chance)
            case _:
                return noise.rotate_documents(columns, layout, chance)
