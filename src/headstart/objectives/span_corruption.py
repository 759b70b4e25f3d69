"""Span corruption: a sentinel stands for each span that is cut out of a row, and the decoder writes the spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Bools, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import generator
from headstart.objectives.chunked import TextObjective


class Counts(NamedTuple):
    """How T5 divides a stretch of text: tokens cut out and the spans they make, and what either side reads."""

    noise: int
    spans: int
    inputs: int
    targets: int


class SpanCorruption(TextObjective):
    """Cut spans out of a row, a sentinel in the place of each, and let the decoder write what stood there.

    The arithmetic is that of T5's code: 0.15 of the tokens in spans of 3 on average, both numbers exact in every row;
    the spans and what lies between them are random partitions, the first of which is kept and the last cut out. Rows
    are cut longer than the encoder reads by as much as sentinels save, so that nothing is padded: 568 tokens become 512
    for the encoder and 114 for the decoder. Either side ends with [SEP], which is T5's end token here. An unknown token
    is not cut out: inside a span it stays in the input, after the span's sentinel.
    """

    paper: ClassVar[str] = "Raffel et al. 2020, T5; modes: Tay et al. 2023, UL2"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    class Config(Section):
        """What share is cut out, in how long spans, and how they are marked."""

        name: Literal["span_corruption"] = "span_corruption"
        density: float = Field(0.15, gt=0, le=0.5, description="share of a row's tokens that is cut out; T5 used 0.15")
        mean_length: float = Field(3.0, ge=1, description="tokens in a span, on average; T5 used 3")
        sentinels: int = Field(100, ge=1, description="tokens <extra_id_0> … that mark spans; T5 used 100")
        mode: str | None = Field(None, min_length=1, description="token in front of the input; UL2: [R] here, or [X]")
        chunk: int = Field(512, ge=1, description="positions whose logits stand in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or SpanCorruption.Config(**settings)

    def special_tokens(self) -> Sequence[str]:
        """Name the sentinels, the one of the first span first, and the mode if there is one."""
        sentinels = [f"<extra_id_{number}>" for number in range(self.config.sentinels)]
        return [*sentinels, self.config.mode] if self.config.mode else sentinels

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for as long stretches of bare text as the encoder reads `seq_length` tokens of, sentinels included."""
        length = max(2, seq_length - 2)
        while self.counts(length + 1).inputs <= seq_length:
            length += 1
        self._require_sentinels(length)
        return RowShape(length, opens=False, closes=False, separates=False)

    def counts(self, length: int) -> Counts:
        """Divide a stretch of some length, a mode and either side's end counted with what is read.

        At a density of 0.5 an odd length is divided so that the targets are not longer than the inputs.
        """
        noise = min(max(round(length * self.config.density), 1), length // 2)
        spans = min(max(round(noise / self.config.mean_length), 1), noise)
        return Counts(noise, spans, length - noise + spans + 1 + bool(self.config.mode), noise + spans + 1)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Cut spans out; returns input_ids, labels and weights (0 for a token of a row that has too little text)."""
        self._require_sentinels(rows.ids.shape[1])
        added = np.asarray([vocabulary.added[token] for token in self.special_tokens()], dtype=np.int64)
        sentinels, mode = np.split(added, [self.config.sentinels])
        end = np.asarray([vocabulary.sep])
        inputs, targets = [], []
        for row, sample in zip(rows.ids, rows.samples, strict=True):
            chance = generator(seed, sample.epoch, sample.index, "span_corruption")
            cut, opens = self._spans(vocabulary.special[row], chance)
            shown = np.where(opens, sentinels[np.cumsum(opens) - 1], row)[opens | ~cut]
            starts = np.flatnonzero(opens[cut])
            inputs.append(np.concatenate([mode, shown, end]))
            targets.append(np.concatenate([np.insert(row[cut], starts, sentinels[: len(starts)]), end]))
        labels = np.stack(targets)
        counted = ~vocabulary.special[labels] | np.isin(labels, [*sentinels, *end])
        arrays = {"input_ids": np.stack(inputs), "labels": labels, "weights": counted.astype(np.float32)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, by the encoder and by the decoder."""
        return batch["input_ids"].numel() + batch["labels"].numel()

    def _spans(self, special: Bools, chance: np.random.Generator) -> tuple[Bools, Bools]:
        """Draw which tokens are cut out, special ones only where the others are too few, and which open a span."""
        noise, spans, *_ = self.counts(len(special))
        free = np.flatnonzero(~special)
        if len(free) < noise + spans:
            free = np.arange(len(special))
        lengths = np.empty(2 * spans, dtype=np.int64)
        lengths[0::2] = _partition(len(free) - noise, spans, chance)
        lengths[1::2] = _partition(noise, spans, chance)
        cut, opens = np.zeros((2, len(special)), dtype=bool)
        ends = np.cumsum(lengths)
        cut[free] = np.repeat(np.arange(2 * spans) % 2 == 1, lengths) if spans else False
        opens[free[ends[0::2]]] = True
        return cut, opens

    def _require_sentinels(self, length: int) -> None:
        spans = self.counts(length).spans
        if spans > self.config.sentinels:
            raise RecipeError(
                f"a row of {length:,} tokens has {spans} spans; objective.sentinels is {self.config.sentinels}",
                allowed="Each span takes a sentinel",
                do=f"Set objective.sentinels to {spans} or more, shorten the rows, or raise objective.mean_length",
            )


def _partition(items: int, parts: int, chance: np.random.Generator) -> Ints:
    """Divide items into parts of one or more, all ways to do so as likely; no parts at all hold nothing."""
    ends = np.sort(chance.permutation(max(items - 1, 0))[: max(parts - 1, 0)]) + 1
    return np.diff(ends, prepend=0, append=items)[:parts]
