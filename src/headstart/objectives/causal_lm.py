"""Causal language modeling: predict each token of a row from those before it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Rows, RowShape, Vocabulary
from headstart.core.lazy import torch
from headstart.objectives.chunked import TextObjective


class CausalLM(TextObjective):
    """Predict every token from those before it, including the end of a document (GPT).

    A row is [CLS] followed by text with [SEP] after each document. [CLS] is the beginning-of-text token and [SEP] the
    end-of-text token in the model's config, so `generate` uses them. Batches involve no randomness.
    """

    paper: ClassVar[str] = "Radford et al. 2018, GPT"
    families: ClassVar[tuple[str, ...]] = ("decoder",)
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    class Config(Section):
        """The memory used by the logits."""

        name: Literal["causal_lm"] = "causal_lm"
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or CausalLM.Config(**settings)

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] …` with [SEP] between documents; no [SEP] at the end, where the text continues."""
        return RowShape(seq_length, add_sep=False)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Return the unchanged rows; labels are the same tokens except special ones other than [SEP]."""
        ids = torch.from_numpy(rows.ids.copy())  # (rows, length)
        predicted = torch.from_numpy(~vocabulary.special[rows.ids]) | (ids == vocabulary.sep)
        predicted[:, 0] = False
        return {"input_ids": ids, "labels": ids.masked_fill(~predicted, -100), "weights": predicted.float()}
