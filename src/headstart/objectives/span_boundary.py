"""Span masking with a boundary objective: hide runs of words, and predict them also from the tokens around alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Bools, Ints, Rows, Vocabulary
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective, LossAndLogits
from headstart.objectives.heads import Head, HeadConfig, beside, recorded_states
from headstart.objectives.masked_lm import masked_logits
from headstart.objectives.positions import slots, spread, summed_loss

FARTHEST = 20
"""Tokens of a span that the boundary objective predicts, from its start; SpanBERT's code has the same limit."""
_PLACE_WIDTH = 200


class BoundaryHead(Head):
    """Two layers over the states around a span and the place inside it; the output is read by the word embeddings."""

    def __init__(self, config: HeadConfig) -> None:
        """Build the layers: places of width 200, GELU and layer norm after each product, as in SpanBERT."""
        super().__init__(config)
        self.places = torch.nn.Embedding(FARTHEST, _PLACE_WIDTH)
        self.first = torch.nn.Linear(2 * config.hidden_size + _PLACE_WIDTH, config.hidden_size)
        self.first_norm = torch.nn.LayerNorm(config.hidden_size)
        self.second = torch.nn.Linear(config.hidden_size, config.output_size)
        self.second_norm = torch.nn.LayerNorm(config.output_size)
        self.post_init()

    def forward(self, left: torch.Tensor, right: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Return a vector for each predicted token, as wide as the word embeddings."""
        inner = torch.cat([left, right, self.places(place.clamp(max=FARTHEST - 1))], dim=-1)
        inner = self.first_norm(F.gelu(self.first(inner)))
        return self.second_norm(F.gelu(self.second(inner)))


class NetworkAndBoundaryHead(torch.nn.Module):
    """A masked-LM network with the boundary head; called with the collator's keywords, it returns their mean loss."""

    def __init__(self, objective: SpanBoundary, network: PreTrainedModel, head: BoundaryHead) -> None:
        """Hold all three."""
        super().__init__()
        self.objective, self.network, self.head = objective, network, head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
    ) -> LossAndLogits:
        """Return the mean loss per masked token, and the network's logits at the masked positions."""
        chosen = slots(labels)
        distances = {"before": before.gather(1, chosen["positions"]), "after": after.gather(1, chosen["positions"])}
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, **chosen, **distances}
        predicted = self.objective.predict(self, batch)
        total = _masked_loss(predicted, batch) + _boundary_loss(predicted, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=predicted.masked)


class Predicted(NamedTuple):
    """The logits of both ways to predict the masked tokens, each of shape (rows, positions, vocabulary)."""

    masked: torch.Tensor
    boundary: torch.Tensor


class SpanBoundary(BaseObjective):
    """Predict hidden spans of words, token by token and from the spans' boundaries (SpanBERT).

    Lengths in words follow a geometric distribution cut off at `longest` and normed again, 3.8 words in the mean.
    Spans start anywhere with equal chance, hold whole words, no special token, and leave a word between them, so the
    boundary tokens are always seen; the last one of a row is cut to the words that the rate leaves. A span is shown
    as [MASK], as random tokens or as it is, all of it alike.

    The boundary head is no part of the plain artifact: it lies beside it in `boundary_head/`, for going on.
    """

    paper: ClassVar[str] = "Joshi et al. 2020, SpanBERT"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "masked_loss"
    """The entry of `measure` that is an entropy of tokens."""

    class Config(Section):
        """How many tokens are hidden, in spans of which lengths, and what is shown in their place."""

        name: Literal["span_boundary"] = "span_boundary"
        rate: float = Field(0.15, gt=0, le=0.5, description="share of a row's tokens to predict; SpanBERT used 0.15")
        stop: float = Field(0.2, gt=0, lt=1, description="chance that a span ends after a word; SpanBERT used 0.2")
        longest: int = Field(10, ge=1, description="most words in a span; SpanBERT used 10")
        mask: float = Field(0.8, ge=0, le=1, description="share of spans shown as [MASK]; SpanBERT used 0.8")
        random: float = Field(0.1, ge=0, le=1, description="share of spans shown as random tokens; SpanBERT used 0.1")

        @model_validator(mode="after")
        def _shares_fit(self) -> SpanBoundary.Config:
            if self.mask + self.random > 1 + 1e-9:
                raise ValueError(
                    f"mask + random is {self.mask + self.random:g}; it must be at most 1. SpanBERT used 0.8 + 0.1."
                )
            return self

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or SpanBoundary.Config(**settings)

    def length_shares(self) -> npt.NDArray[np.float64]:
        """Return the share of spans of 1, 2, … words."""
        shares = (1 - self.config.stop) ** np.arange(self.config.longest)
        return shares / shares.sum()

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return a masked-LM network with the boundary head, which is loaded if it lies beside the network."""
        network = make(self.auto_class)
        width = network.get_output_embeddings().weight.shape[1]
        return NetworkAndBoundaryHead(self, network, beside(network, "boundary_head", BoundaryHead, width))

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the artifact and the head as its companion."""
        assert isinstance(module, NetworkAndBoundaryHead)
        return {"": module.network, "boundary_head": module.head}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Hide spans; returns input_ids, positions, labels, weights, and the distances to the tokens around a span."""
        ids = rows.ids.copy()
        budget = max(1, round(self.config.rate * ids.shape[1]))
        names = ("positions", "labels", "before", "after")
        arrays = {name: np.zeros((len(ids), budget), dtype=np.int64) for name in names}
        weights = np.zeros((len(ids), budget), dtype=np.float32)
        ordinary = vocabulary.ordinary
        for row, sample in enumerate(rows.samples):
            chance = generator(seed, sample.epoch, sample.index, "span_boundary")
            filled = 0
            for start, stop in self._spans(rows.ids[row], vocabulary, budget, chance):
                place, slots = np.arange(start, stop), slice(filled, filled + stop - start)
                arrays["positions"][row, slots], arrays["labels"][row, slots] = place, rows.ids[row, start:stop]
                arrays["before"][row, slots], arrays["after"][row, slots] = place - start + 1, stop - place
                weights[row, slots] = 1.0
                filled += stop - start
                shown = chance.random()
                if shown < self.config.mask:
                    ids[row, start:stop] = vocabulary.mask
                elif shown < self.config.mask + self.config.random:
                    ids[row, start:stop] = ordinary[chance.integers(0, len(ordinary), size=stop - start)]
        arrays["input_ids"] = ids
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "weights": torch.from_numpy(weights)
        }

    def predict(self, module: NetworkAndBoundaryHead, batch: Batch) -> Predicted:
        """Predict the masked tokens by the network's own head, and from the states at the boundaries."""
        with recorded_states(module.network) as states:
            masked = masked_logits(module.network, batch)

        def at(columns: torch.Tensor) -> torch.Tensor:
            return states[0].gather(1, columns.unsqueeze(-1).expand(-1, -1, states[0].shape[-1]))

        # A slot without a prediction has distance 0; its column lies in the row all the same.
        left, right = batch["positions"] - batch["before"], batch["positions"] + batch["after"]
        vectors = module.head(at(left), at(right), (batch["before"] - 1).clamp(min=0))
        return Predicted(masked, module.network.get_output_embeddings()(vectors))

    def loss(self, model: NetworkAndBoundaryHead, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of both predictions in nats, summed over the masked tokens."""
        predicted = self.predict(model, batch)
        return _masked_loss(predicted, batch) + _boundary_loss(predicted, batch)

    def measure(self, model: NetworkAndBoundaryHead, batch: Batch) -> dict[str, float]:
        """Return sums over the masked tokens: the loss, its two parts in nats, and the correct guesses of each."""
        predicted = self.predict(model, batch)
        masked, boundary = _masked_loss(predicted, batch), _boundary_loss(predicted, batch)
        right = [((logits.argmax(-1) == batch["labels"]) * batch["weights"]).sum() for logits in predicted]
        return {
            "loss": float(masked + boundary),
            "masked_loss": float(masked),
            "boundary_loss": float(boundary),
            "accuracy": float(right[0]),
            "boundary_accuracy": float(right[1]),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the keywords of the module, each as long as the rows."""
        distances = {name: spread(batch, name, 0) for name in ("before", "after")}
        return {"input_ids": batch["input_ids"], "labels": spread(batch, "labels", -100), **distances}

    def _spans(
        self, row: Ints, vocabulary: Vocabulary, budget: int, chance: np.random.Generator
    ) -> Iterator[tuple[int, int]]:
        """Yield spans of whole words as (first token, token after the last), in the order in which they are drawn."""
        first = np.flatnonzero(vocabulary.word_starts(row) | vocabulary.special[row])
        size = np.diff(first, append=len(row))
        taken = vocabulary.special[row[first]]
        # A span has a token on either side.
        taken[[0, -1]] = True
        reach = np.cumsum(self.length_shares())
        while budget:
            wanted = 1 + min(int(np.searchsorted(reach, chance.random(), side="right")), len(reach) - 1)
            starts = _free_runs(taken, size <= budget, wanted)
            # Where no run of free words is as long, the longest there is will do.
            while not len(starts) and wanted > 1:
                wanted -= 1
                starts = _free_runs(taken, size <= budget, wanted)
            if not len(starts):
                return
            start = int(starts[chance.integers(len(starts))])
            words = int(np.searchsorted(np.cumsum(size[start : start + wanted]), budget, side="right"))
            tokens = int(size[start : start + words].sum())
            yield int(first[start]), int(first[start]) + tokens
            taken[start - 1 : start + words + 1] = True
            budget -= tokens


def _free_runs(taken: Bools, fits: Bools, length: int) -> Ints:
    """Return the words at which a run of free words of this length starts, the first of them small enough."""
    sums = np.concatenate([[0], np.cumsum(taken)])
    return np.flatnonzero((sums[length:] == sums[:-length]) & fits[: max(0, len(taken) - length + 1)])


def _masked_loss(predicted: Predicted, batch: Batch) -> torch.Tensor:
    return summed_loss(predicted.masked, batch)


def _boundary_loss(predicted: Predicted, batch: Batch) -> torch.Tensor:
    near = (batch["before"] <= FARTHEST).float()
    return summed_loss(predicted.boundary, batch, batch["weights"] * near)
