"""Causal language modelling: predict each token of a row from those before it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Rows, RowShape, Vocabulary
from headstart.objectives.chunked import TextObjective


class CausalLM(TextObjective):
    """Predict every token from those before it, the end of a document among them.

    A row is `[CLS]` and a stretch of the text with [SEP] after each document: [CLS] stands for the beginning of a text
    and [SEP] for its end, as the model's config says to `generate`. There is no chance in a batch.
    """

    paper: ClassVar[str] = "Radford et al. 2018, GPT"
    families: ClassVar[tuple[str, ...]] = ("decoder",)
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    class Config(Section):
        """How much of the output stands in memory."""

        name: Literal["causal_lm"] = "causal_lm"
        chunk: int = Field(512, ge=1, description="positions whose logits stand in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or CausalLM.Config(**settings)

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for `[CLS] …` with [SEP] between documents and none at a row's end, where a text just goes on."""
        return RowShape(seq_length, closes=False)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Show the rows as they are; labels are the same tokens, with the special ones but [SEP] left out."""
        ids = torch.from_numpy(rows.ids.copy())
        counted = torch.from_numpy(~vocabulary.special[rows.ids]) | (ids == vocabulary.sep)
        counted[:, 0] = False
        return {"input_ids": ids, "labels": ids.masked_fill(~counted, -100), "weights": counted.float()}
