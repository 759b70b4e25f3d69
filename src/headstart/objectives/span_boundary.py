"""Span masking with a span-boundary objective: mask spans of words and predict them also from their boundaries."""

from __future__ import annotations

from collections.abc import Iterator
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
        ids = rows.ids.copy()
        budget = max(1, round(self.config.rate * ids.shape[1]))
        names = ("positions", "labels", "before", "after")
        arrays = {name: np.zeros((len(ids), budget), dtype=np.int64) for name in names}
        weights = np.zeros((len(ids), budget), dtype=np.float32)
        ordinary = vocabulary.ordinary
        for row, sample in enumerate(rows.samples):
            rng = generator(seed, sample.epoch, sample.index, "span_boundary")
            filled = 0
            for start, stop in self._spans(rows.ids[row], vocabulary, budget, rng):
                index, slots = np.arange(start, stop), slice(filled, filled + stop - start)
                arrays["positions"][row, slots], arrays["labels"][row, slots] = index, rows.ids[row, start:stop]
                arrays["before"][row, slots], arrays["after"][row, slots] = index - start + 1, stop - index
                weights[row, slots] = 1.0
                filled += stop - start
                draw = rng.random()
                if draw < self.config.mask:
                    ids[row, start:stop] = vocabulary.mask
                elif draw < self.config.mask + self.config.random:
                    ids[row, start:stop] = ordinary[rng.integers(0, len(ordinary), size=stop - start)]
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
        self, row: Ints, vocabulary: Vocabulary, budget: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, int]]:
        """Yield the start and stop of random spans of whole words, in the order in which they are drawn."""
        first = np.flatnonzero(vocabulary.word_starts(row) | vocabulary.special[row])
        size = np.diff(first, append=len(row))
        taken = vocabulary.special[row[first]]
        # A span needs a token on either side.
        taken[[0, -1]] = True
        cdf = np.cumsum(self.length_probabilities())
        while budget:
            length = 1 + min(int(np.searchsorted(cdf, rng.random(), side="right")), len(cdf) - 1)
            starts = _free_runs(taken, size <= budget, length)
            # If no run of free words is long enough, use the longest one.
            while not len(starts) and length > 1:
                length -= 1
                starts = _free_runs(taken, size <= budget, length)
            if not len(starts):
                return
            start = int(starts[rng.integers(len(starts))])
            words = int(np.searchsorted(np.cumsum(size[start : start + length]), budget, side="right"))
            tokens = int(size[start : start + words].sum())
            yield int(first[start]), int(first[start]) + tokens
            taken[start - 1 : start + words + 1] = True
            budget -= tokens


def _free_runs(taken: Bools, fits: Bools, length: int) -> Ints:
    """Return the words at which `length` free words start; the first of them must fit into the budget."""
    sums = np.concatenate([[0], np.cumsum(taken)])
    return np.flatnonzero((sums[length:] == sums[:-length]) & fits[: max(0, len(taken) - length + 1)])


def masked_loss(output: SpanBoundaryOutput, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy in nats of the masked tokens, predicted at their own positions."""
    return summed_loss(output.masked_logits, batch)


def boundary_loss(output: SpanBoundaryOutput, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy in nats of the first tokens of the spans, predicted from the boundaries."""
    near = (batch["before"] <= MAX_BOUNDARY_TARGETS).float()
    return summed_loss(output.boundary_logits, batch, batch["weights"] * near)
