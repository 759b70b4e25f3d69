"""Span masking with a span-boundary objective: mask spans of words and predict them also from their boundaries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Bools, Ints, Rows, Vocabulary
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective
from headstart.objectives.masked_lm import masked_logits
from headstart.objectives.positions import count_correct, scatter_to_rows, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.objectives.span_boundary_network import NetworkAndBoundaryHead

MAX_BOUNDARY_TARGETS = 20
"""The number of tokens from the start of a span that the boundary objective predicts, as in SpanBERT's code."""


class SpanBoundaryOutput(NamedTuple):
    """The logits of both predictions of the masked tokens, each of shape (rows, slots, vocabulary)."""

    masked_logits: torch.Tensor
    boundary_logits: torch.Tensor


class SpanBoundary(BaseObjective):
    """Predict masked spans of words, from each token's own position and from the span's boundaries (SpanBERT).

    Lengths in words follow a geometric distribution truncated at `longest` and renormalized, with a mean of 3.8 words.
    The start of a span is uniform. Spans contain whole words and no special tokens, and there is at least one word
    between two spans, so the boundary tokens are never masked. The last span of a row is cut to the words that the rate
    leaves. All tokens of a span are replaced by [MASK] or by random tokens, or the span is kept.

    The boundary head is not part of the plain artifact. It is saved in the subfolder `boundary_head/` for continued
    pre-training.
    """

    paper: ClassVar[str] = "Joshi et al. 2020, SpanBERT"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "masked_loss"
    """The entry of `measure` that is a cross-entropy over the vocabulary."""

    class Config(Section):
        """The fraction of tokens to mask, the lengths of spans, and their replacements in the input."""

        name: Literal["span_boundary"] = "span_boundary"
        rate: float = Field(0.15, gt=0, le=0.5, description="fraction of a row's tokens to predict; SpanBERT used 0.15")
        stop: float = Field(0.2, gt=0, lt=1, description="probability that a span ends after a word; SpanBERT used 0.2")
        longest: int = Field(10, ge=1, description="maximum number of words in a span; SpanBERT used 10")
        mask: float = Field(0.8, ge=0, le=1, description="fraction of spans replaced by [MASK]; SpanBERT used 0.8")
        random: float = Field(
            0.1, ge=0, le=1, description="fraction of spans replaced by random tokens; SpanBERT used 0.1"
        )

        @model_validator(mode="after")
        def _check_fractions(self) -> SpanBoundary.Config:
            if self.mask + self.random > 1 + 1e-9:
                raise ValueError(
                    f"mask + random is {self.mask + self.random:g}; it must be at most 1. SpanBERT used 0.8 + 0.1."
                )
            return self

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or SpanBoundary.Config(**settings)

    def length_probabilities(self) -> npt.NDArray[np.float64]:
        """Return the probabilities of spans of 1, 2, … words."""
        weights = (1 - self.config.stop) ** np.arange(self.config.longest)
        return weights / weights.sum()

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return a masked-LM network with the boundary head, loaded from the network's folder or new."""
        from headstart.objectives.heads import load_or_create_head
        from headstart.objectives.span_boundary_network import BoundaryHead, NetworkAndBoundaryHead

        network = make(self.auto_class)
        width = network.get_output_embeddings().weight.shape[1]
        return NetworkAndBoundaryHead(self, network, load_or_create_head(network, "boundary_head", BoundaryHead, width))

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the main part and the head in its subfolder."""
        from headstart.objectives.span_boundary_network import NetworkAndBoundaryHead

        assert isinstance(module, NetworkAndBoundaryHead)
        return {"": module.network, "boundary_head": module.head}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask spans; returns input_ids, positions, labels, weights, and the distances to the boundary tokens."""
        ids, ordinary = rows.ids.copy(), vocabulary.ordinary
        budget = max(1, round(self.config.rate * ids.shape[1]))
        opens = vocabulary.word_starts(ids) | vocabulary.special[ids]  # (rows, length)
        # Each row draws from its own generator; the spans of all rows are then applied at once.
        spans: list[tuple[int, int, int]] = []
        replacements: list[Ints] = []
        for row, sample in enumerate(rows.samples):
            rng = generator(seed, sample.epoch, sample.index, "span_boundary")
            first = np.flatnonzero(opens[row])
            for start, stop in self._spans(first, vocabulary.special[ids[row, first]], ids.shape[1], budget, rng):
                spans.append((row, start, stop))
                draw = rng.random()
                if draw < self.config.mask:
                    replacements.append(np.full(stop - start, vocabulary.require("mask")))
                elif draw < self.config.mask + self.config.random:
                    replacements.append(ordinary[rng.integers(0, len(ordinary), size=stop - start)])
                else:
                    replacements.append(rows.ids[row, start:stop])
        span_row, starts, stops = np.asarray(spans, dtype=np.int64).reshape(-1, 3).T
        # One entry per masked token, in the order of the spans.
        owner = np.repeat(np.arange(len(spans)), stops - starts)
        of_row, count = span_row[owner], np.arange(len(owner))
        inside = count - np.searchsorted(owner, owner)
        slots = of_row, count - np.searchsorted(of_row, of_row)
        position = starts[owner] + inside
        names = ("positions", "labels", "before", "after")
        arrays = {name: np.zeros((len(ids), budget), dtype=np.int64) for name in names}
        weights = np.zeros((len(ids), budget), dtype=np.float32)
        arrays["positions"][slots], arrays["labels"][slots] = position, rows.ids[of_row, position]
        arrays["before"][slots], arrays["after"][slots] = inside + 1, stops[owner] - position
        weights[slots] = 1.0
        if replacements:
            ids[of_row, position] = np.concatenate(replacements)
        arrays["input_ids"] = ids
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "weights": torch.from_numpy(weights)
        }

    def predict(self, module: NetworkAndBoundaryHead, batch: Batch) -> SpanBoundaryOutput:
        """Return the logits of the masked tokens from the network's own head and from the boundary head."""
        from headstart.objectives.heads import recorded_states

        with recorded_states(module.network) as states:
            logits = masked_logits(module.network, batch)

        def states_at(columns: torch.Tensor) -> torch.Tensor:
            return states[0].gather(1, columns.unsqueeze(-1).expand(-1, -1, states[0].shape[-1]))

        # An unused slot has distances of 0, so its columns are within the row.
        left, right = batch["positions"] - batch["before"], batch["positions"] + batch["after"]  # (rows, slots)
        vectors = module.head(states_at(left), states_at(right), (batch["before"] - 1).clamp(min=0))
        return SpanBoundaryOutput(logits, module.network.get_output_embeddings()(vectors))

    def loss(self, model: NetworkAndBoundaryHead, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of both predictions in nats, summed over the masked tokens."""
        output = self.predict(model, batch)
        return masked_loss(output, batch) + boundary_loss(output, batch)

    def measure(self, model: NetworkAndBoundaryHead, batch: Batch) -> dict[str, float]:
        """Return the loss, its two terms in nats and the correct predictions of each, summed over the masked tokens."""
        output = self.predict(model, batch)
        masked, boundary = masked_loss(output, batch), boundary_loss(output, batch)
        return {
            "loss": float(masked + boundary),
            "masked_loss": float(masked),
            "boundary_loss": float(boundary),
            "accuracy": float(count_correct(output.masked_logits, batch)),
            "boundary_accuracy": float(count_correct(output.boundary_logits, batch)),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of `NetworkAndBoundaryHead`, each of shape (rows, length)."""
        distances = {name: scatter_to_rows(batch, name, 0) for name in ("before", "after")}
        return {"input_ids": batch["input_ids"], "labels": scatter_to_rows(batch, "labels", -100), **distances}

    def _spans(
        self, first: Ints, special: Bools, length: int, budget: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, int]]:
        """Yield the start and stop of random spans of whole words, in the order in which they are drawn.

        Plain integers, because a row has few words and numpy's calls would take most of the time.

        Args:
            first: the columns at which words start.
            special: whether each word is a special token.
            length: the number of columns.
            budget: the number of tokens that all spans have together, at most.
            rng: the generator of the row.
        """
        columns = [*first.tolist(), length]
        sizes = [stop - start for start, stop in pairwise(columns)]
        taken = special.copy()
        # A span needs a token on either side.
        taken[[0, -1]] = True
        free = [(left + 1, right) for left, right in pairwise(np.flatnonzero(taken).tolist()) if right - left > 1]
        largest, cdf = max(sizes), np.cumsum(self.length_probabilities()).tolist()
        while budget:
            words = 1 + min(bisect_right(cdf, rng.random()), len(cdf) - 1)
            fits = None if largest <= budget else [size <= budget for size in sizes]
            # If no run of free words is long enough, use the longest one.
            while not (choices := _count_starts(free, words, fits)) and words > 1:
                words -= 1
            if not choices:
                return
            run, start = _nth_start(free, words, fits, int(rng.integers(choices)))
            stop, left = start, budget
            while stop < start + words and sizes[stop] <= left:
                left -= sizes[stop]
                stop += 1
            yield columns[start], columns[stop]
            budget = left
            begin, end = free[run]
            free[run : run + 1] = [(a, b) for a, b in ((begin, start - 1), (stop + 1, end)) if a < b]


def _count_starts(free: Sequence[tuple[int, int]], words: int, fits: Sequence[bool] | None) -> int:
    """Return at how many words a span may start: that many free words follow, and the first one fits."""
    if fits is None:
        return sum(end - begin - words + 1 for begin, end in free if end - begin >= words)
    return sum(sum(fits[begin : end - words + 1]) for begin, end in free if end - begin >= words)


def _nth_start(
    free: Sequence[tuple[int, int]], words: int, fits: Sequence[bool] | None, number: int
) -> tuple[int, int]:
    """Return the run of free words with the given start among those that `_count_starts` counts, and that start."""
    for run, (begin, end) in enumerate(free):
        if end - begin < words:
            continue
        starts: Sequence[int] = range(begin, end - words + 1)
        if fits is not None:
            starts = [start for start in starts if fits[start]]
        if number < len(starts):
            return run, starts[number]
        number -= len(starts)
    raise IndexError(number)


def masked_loss(output: SpanBoundaryOutput, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy in nats of the masked tokens, predicted at their own positions."""
    return summed_loss(output.masked_logits, batch)


def boundary_loss(output: SpanBoundaryOutput, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy in nats of the first tokens of the spans, predicted from the boundaries."""
    near = (batch["before"] <= MAX_BOUNDARY_TARGETS).float()
    return summed_loss(output.boundary_logits, batch, batch["weights"] * near)
