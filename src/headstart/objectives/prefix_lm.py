"""Prefix language modeling: the prefix of a row is read bidirectionally, the rest is predicted left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Bools, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.attention import additive_mask
from headstart.objectives.chunked import TextObjective

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PrefixLM(TextObjective):
    """Predict the rest of a row, left to right, from a prefix that is read bidirectionally (T5, UL2).

    The length of the prefix is uniform and drawn for each row and epoch. The encoder of an encoder-decoder reads the
    prefix, its decoder writes the rest; both are padded to the length of the row, so that shapes are static. With a
    fixed `prefix` there is no padding, and a step takes about half the time. A decoder reads the whole row with
    bidirectional attention within the prefix and causal attention after it. Both families read `seq_length` tokens of
    a row in total. [SEP] ends a document and is predicted.
    """

    paper: ClassVar[str] = "Liu et al. 2018, prefix LM as in Raffel et al. 2020, T5; modes: Tay et al. 2023, UL2"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder", "decoder")

    class Config(Section):
        """The family, the length of the prefix and its mode token."""

        name: Literal["prefix_lm"] = "prefix_lm"
        family: Literal["encoder-decoder", "decoder"] = Field(
            "encoder-decoder", description="family of the backbone; must equal that of backbone"
        )
        prefix: float | None = Field(
            None,
            gt=0,
            lt=1,
            description="a fixed fraction of a row that an encoder reads, such as UL2's 0.75; default: drawn at random "
            "for each row, as in T5. A decoder always draws it",
        )
        mode: str | None = Field(None, min_length=1, description="token before the prefix; UL2 used [S]")
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or PrefixLM.Config(**settings)
        self.families = (self.config.family,)  # type: ignore[misc]  # the class trains both, an instance one of them

    def special_tokens(self) -> Sequence[str]:
        """Return the mode token, if there is one."""
        return [self.config.mode] if self.config.mode else []

    def row_shape(self, seq_length: int) -> RowShape:
        """Return text with [SEP] between documents, with [CLS] first for a decoder; one token shorter with a mode."""
        return RowShape(seq_length - bool(self.config.mode), add_cls=self._is_decoder, add_sep=False)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network with its head; raises if some of its layers use sliding-window attention."""
        model = make("AutoModelForCausalLM" if self._is_decoder else "AutoModelForSeq2SeqLM")
        require_full_attention(model)
        return model

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Split rows; returns input_ids, labels and weights, and for a decoder the length of each row's prefix."""
        added = [vocabulary.added[token] for token in self.special_tokens()]
        mode = np.tile(np.asarray(added, dtype=np.int64), (len(rows.ids), 1))
        predicted = ~vocabulary.special[rows.ids] | (rows.ids == vocabulary.sep)  # (rows, length)
        length = rows.ids.shape[1]
        if not self._is_decoder and self.config.prefix is not None:
            cut = min(max(round(self.config.prefix * length), 1), length - 1)
            inputs, labels, weights = np.hstack([mode, rows.ids[:, :cut]]), rows.ids[:, cut:], predicted[:, cut:]
            return _tensors(input_ids=inputs, labels=labels, weights=weights.astype(np.float32))
        rngs = [generator(seed, sample.epoch, sample.index, "prefix_lm") for sample in rows.samples]
        cuts = np.asarray([rng.integers(1, max(length, 2)) for rng in rngs])  # (rows,)
        if not self._is_decoder:
            return _split(rows.ids, predicted, cuts, mode, vocabulary.pad)
        predicted &= np.arange(length) >= cuts[:, None]
        inputs = np.hstack([rows.ids[:, :1], mode, rows.ids[:, 1:]])
        predicted = np.hstack([predicted[:, :1], np.zeros(mode.shape, dtype=bool), predicted[:, 1:]])
        labels = np.where(predicted, inputs, -100)
        prefixes = cuts + mode.shape[1]
        return _tensors(input_ids=inputs, labels=labels, weights=predicted.astype(np.float32), prefixes=prefixes)

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read by the encoder and the decoder, without padding."""
        if "lengths" in batch:
            return int(batch["lengths"].sum())
        return batch["input_ids"].numel() + (0 if self._is_decoder else batch["labels"].numel())

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        return super().loss(model, self._with_mask(batch))

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, summed over the predicted positions."""
        return super().measure(model, self._with_mask(batch))

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of the plain model, for a decoder with a four-dimensional attention mask."""
        inputs = super().as_inputs(self._with_mask(batch))
        return {name: tensor for name, tensor in inputs.items() if name not in ("prefixes", "lengths")}

    @property
    def _is_decoder(self) -> bool:
        return self.config.family == "decoder"

    def _with_mask(self, batch: Batch) -> Batch:
        if not self._is_decoder:
            return batch
        return {**batch, "attention_mask": prefix_mask(batch["prefixes"], batch["input_ids"].shape[1])}


def require_full_attention(model: torch.nn.Module) -> None:
    """Raise if some layers of a network use sliding-window attention."""
    if "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
        raise RecipeError(
            "some layers of the backbone use sliding-window attention",
            allowed="A bidirectional prefix needs full attention within the prefix",
            do="Set `backbone.max_length` to 512 or less, or choose another `backbone.kind`",
        )


def prefix_mask(prefixes: torch.Tensor, length: int) -> torch.Tensor:
    """Return an additive attention mask of shape (rows, 1, length, length), 0 where attention is allowed.

    Every position attends to the prefix of its row, whose length is in `prefixes` (rows,), and to the positions before
    it. The mask is additive because transformers' eager attention adds it to the scores.
    """
    index = torch.arange(length, device=prefixes.device)
    return additive_mask((index <= index[:, None]) | (index < prefixes[:, None, None]))


def _split(ids: Ints, predicted: Bools, cuts: Ints, mode: Ints, pad: int) -> Batch:
    """Split each row at its own cut; the encoder's inputs and the labels are padded to one less than the row."""
    length = ids.shape[1]
    width = max(length - 1, 1)
    columns = np.arange(width)
    is_prefix = columns < cuts[:, None]  # (rows, width)
    rest = np.minimum(columns + cuts[:, None], length - 1)
    is_rest = columns < (length - cuts)[:, None]
    attention = np.hstack([np.ones_like(mode), is_prefix.astype(np.int64)])
    return _tensors(
        input_ids=np.hstack([mode, np.where(is_prefix, ids[:, :width], pad)]),
        attention_mask=attention,
        labels=np.where(is_rest, np.take_along_axis(ids, rest, axis=1), pad),
        weights=(is_rest & np.take_along_axis(predicted, rest, axis=1)).astype(np.float32),
        lengths=attention.sum(1) + length - cuts,
    )


def _tensors(**arrays: Any) -> Batch:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
