"""Span corruption: spans of a row are replaced by sentinels, and the decoder generates the spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from headstart.core.data import Batch, Bools, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.one_row import OneRowObjective, OneRowSettings


class Counts(NamedTuple):
    """The sizes that T5 derives from the length of a text."""

    noise: int
    """Tokens removed from the text."""
    spans: int
    """Spans that these tokens form."""
    inputs: int
    """Tokens that the encoder reads."""
    targets: int
    """Tokens that the decoder generates."""


class SpanCorruption(OneRowObjective):
    """Replace spans of a row by sentinels and let the decoder generate the removed spans (T5).

    The arithmetic follows T5's code: 0.15 of the tokens, in spans of 3 on average, both exact in every row. Spans and
    the text between them are random partitions; a row starts with kept text and ends with a span. Rows are longer than
    the encoder's input by what the sentinels save, so nothing is padded: 568 tokens become 512 for the encoder and 114
    for the decoder. Both sequences end with [SEP], which serves as T5's end token. An unknown token is never removed:
    inside a span it stays in the input, after the span's sentinel.

    A decoder reads `[CLS]`, the input and the target as one row of `seq_length` tokens, and predicts the target. With
    `bidirectional_prefix`, it reads the input with bidirectional attention. These are the rows "language model" and
    "prefix LM" of T5's comparison of architectures.
    """

    paper: ClassVar[str] = "Raffel et al. 2020, T5; modes: Tay et al. 2023, UL2"

    class Config(OneRowSettings):
        """The fraction of tokens to remove, the lengths of spans, and the tokens that mark them."""

        name: Literal["span_corruption"] = "span_corruption"
        density: float = Field(0.15, gt=0, le=0.5, description="fraction of a row's tokens to remove; T5 used 0.15")
        mean_length: float = Field(3.0, ge=1, description="mean number of tokens in a span; T5 used 3")
        sentinels: int = Field(100, ge=1, description="number of sentinel tokens <extra_id_0> …; T5 used 100")
        mode: str | None = Field(None, min_length=1, description="token before the input; UL2 used [R] and [X]")
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or SpanCorruption.Config(**settings)
        self.set_family()

    def special_tokens(self) -> Sequence[str]:
        """Return the sentinels in the order of the spans, and the mode token if there is one."""
        sentinels = [f"<extra_id_{number}>" for number in range(self.config.sentinels)]
        return [*sentinels, self.config.mode] if self.config.mode else sentinels

    def row_shape(self, seq_length: int) -> RowShape:
        """Return bare text of the length whose corrupted input has `seq_length` tokens, including sentinels.

        A decoder reads [CLS], the input and the target, which have `seq_length` tokens together.
        """
        length = 2 if self.is_decoder else max(2, seq_length - 2)
        while self._read(length + 1) <= seq_length:
            length += 1
        self._require_sentinels(length)
        return RowShape(length, add_cls=False, add_sep=False, separate_documents=False)

    def counts(self, length: int) -> Counts:
        """Return the sizes for a text of `length` tokens, counting the mode token and the final [SEP] of both sides.

        At a density of 0.5 an odd length is rounded so that the targets are not longer than the inputs.
        """
        noise = min(max(round(length * self.config.density), 1), length // 2)
        spans = min(max(round(noise / self.config.mean_length), 1), noise)
        return Counts(noise, spans, length - noise + spans + 1 + bool(self.config.mode), noise + spans + 1)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Remove spans; returns input_ids, labels and weights (0 for special tokens in rows with too little text)."""
        self._require_sentinels(rows.ids.shape[1])
        added = np.asarray([vocabulary.added[token] for token in self.special_tokens()], dtype=np.int64)
        sentinels, mode = np.split(added, [self.config.sentinels])
        end = np.asarray([vocabulary.sep])
        inputs, targets = [], []
        for row, sample in zip(rows.ids, rows.samples, strict=True):
            rng = generator(seed, sample.epoch, sample.index, "span_corruption")
            removed, opens = self._spans(vocabulary.special[row], rng)
            kept = np.where(opens, sentinels[np.cumsum(opens) - 1], row)[opens | ~removed]
            starts = np.flatnonzero(opens[removed])
            inputs.append(np.concatenate([mode, kept, end]))
            targets.append(np.concatenate([np.insert(row[removed], starts, sentinels[: len(starts)]), end]))
        labels = np.stack(targets)  # (rows, targets)
        predicted = ~vocabulary.special[labels] | np.isin(labels, [*sentinels, *end])
        arrays = {"input_ids": np.stack(inputs), "labels": labels, "weights": predicted.astype(np.float32)}
        if self.is_decoder:
            arrays = self._in_one_row(vocabulary.require("cls"), **arrays)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _read(self, length: int) -> int:
        """Return the number of tokens that `seq_length` limits, for a text of `length` tokens."""
        counts = self.counts(length)
        return 1 + counts.inputs + counts.targets if self.is_decoder else counts.inputs

    def _in_one_row(self, cls: int, input_ids: Any, labels: Any, weights: Any) -> dict[str, Any]:
        """Return the batch of a decoder: [CLS], the input and the target in one row; the target is predicted."""
        first = np.full((len(input_ids), 1), cls, dtype=np.int64)
        ids = np.hstack([first, input_ids, labels])
        unpredicted = np.zeros((len(ids), 1 + input_ids.shape[1]), dtype=np.float32)
        row = {"input_ids": ids, "labels": ids, "weights": np.hstack([unpredicted, weights])}
        prefixes = np.full(len(ids), unpredicted.shape[1], dtype=np.int64)
        return row | ({"prefixes": prefixes} if self.config.bidirectional_prefix else {})

    def _spans(self, special: Bools, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Return which tokens are removed and which start a span; special tokens only if there are too few others."""
        noise, spans, *_ = self.counts(len(special))
        candidates = np.flatnonzero(~special)
        if len(candidates) < noise + spans:
            candidates = np.arange(len(special))
        lengths = np.empty(2 * spans, dtype=np.int64)
        lengths[0::2] = _partition(len(candidates) - noise, spans, rng)
        lengths[1::2] = _partition(noise, spans, rng)
        removed, opens = np.zeros((2, len(special)), dtype=bool)
        ends = np.cumsum(lengths)
        removed[candidates] = np.repeat(np.arange(2 * spans) % 2 == 1, lengths) if spans else False
        opens[candidates[ends[0::2]]] = True
        return removed, opens

    def _require_sentinels(self, length: int) -> None:
        spans = self.counts(length).spans
        if spans > self.config.sentinels:
            raise RecipeError(
                f"a row of {length:,} tokens has {spans} spans, but `objective.sentinels` is {self.config.sentinels}",
                allowed="Each span needs a sentinel",
                do=f"Set `objective.sentinels` to {spans} or more, shorten the rows, or raise `objective.mean_length`",
            )


def _partition(items: int, parts: int, rng: np.random.Generator) -> Ints:
    """Return the sizes of a random partition of `items` into `parts` non-empty parts, uniform over all partitions."""
    ends = np.sort(rng.permutation(max(items - 1, 0))[: max(parts - 1, 0)]) + 1
    return np.diff(ends, prepend=0, append=items)[:parts]
