"""Defaults for objectives with one network and packed rows, and a collator for scripts with their own training loop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Ints, Rows, RowShape, Sample
from headstart.core.errors import ArtifactError
from headstart.core.lazy import torch
from headstart.core.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class BaseObjective:
    """Base class of objectives that train one network on packed rows; a subclass may override any method.

    A batch contains `input_ids` (and `decoder_input_ids`), `weights` with 1 for each prediction and 0 for an unused
    slot, and the other tensors that the loss needs.
    """

    auto_class: ClassVar[str] = "AutoModelForMaskedLM"
    """The name of the transformers auto class of the network and its head."""
    recomputable: ClassVar[bool] = True
    """False if a layer does not compute the same again in the backward pass, as activation checkpointing needs."""
    same_passes: ClassVar[bool] = True
    """True if batches with the same number of rows make the same forward passes, which sharded weights require."""

    def special_tokens(self) -> Sequence[str]:
        """Return no tokens in addition to the tokenizer's own."""
        return ()

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] … [SEP]` with [SEP] between documents."""
        return RowShape(seq_length)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network with its head."""
        return make(self.auto_class)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the only part to save."""
        return {"": cast("PreTrainedModel", module)}

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in the batch."""
        return float(batch["weights"].sum())

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads, in its encoder and its decoder together."""
        return sum(tensor.numel() for name, tensor in batch.items() if name.endswith("input_ids"))

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch without its weights, for batches whose `labels` have the length of the rows."""
        return {name: tensor for name, tensor in batch.items() if name != "weights"}

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator for transformers' Trainer or a plain DataLoader."""
        return ObjectiveCollator(cast(Objective, self), tokenizer, seed)


class ObjectiveCollator:
    """Corrupts tokenized examples and pads them to the longest, for use with transformers' Trainer.

    The noise of an example depends only on (seed, `epoch`, its tokens), not on a global generator or the other
    examples of the batch, so a resumed run draws the same noise. Trainer does not pass the epoch to a collator: set
    `epoch` in a callback's `on_epoch_begin`, or the noise is the same in every epoch.
    """

    def __init__(self, objective: Objective, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Check that the tokenizer has the objective's special tokens."""
        self.objective, self.tokenizer, self.seed, self.epoch = objective, tokenizer, seed, 0
        self.vocabulary = vocabulary_of(tokenizer)
        missing = [token for token in objective.special_tokens() if token not in self.vocabulary.added]
        if missing:
            raise ArtifactError(
                f"the tokenizer lacks {len(missing)} special tokens, starting with {missing[0]}",
                do='Call tokenizer.add_special_tokens({"extra_special_tokens": objective.special_tokens()}) '
                "and model.resize_token_embeddings(len(tokenizer))",
            )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the arguments of the model's forward pass: input_ids, attention_mask, labels and others."""
        rows = [self._row(example) for example in examples]
        left = self.tokenizer.padding_side == "left"
        lengths = [len(row["input_ids"]) for row in rows]
        # Examples that were padded before (to a static width, for instance) keep that width.
        width = max(len(example["input_ids"]) for example in examples) if "attention_mask" in examples[0] else 0
        return {
            name: _stack([row[name] for row in rows], lengths, self._fill_value(name, like), width, left)
            for name, like in rows[0].items()
        }

    def rows_of(self, example: dict[str, Any]) -> Rows:
        """Return an example as `Rows` with one row, whose index is a hash of its tokens."""
        ids = self._strip(example)
        return Rows(ids[None], [Sample(self.epoch, _content_index(ids))])

    def _row(self, example: dict[str, Any]) -> dict[str, torch.Tensor]:
        batch = self.objective.corrupt(self.rows_of(example), self.vocabulary, self.seed)
        inputs = {name: tensor[0] for name, tensor in self.objective.as_inputs(batch).items()}
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        return inputs

    def _strip(self, example: dict[str, Any]) -> Ints:
        """Return the example's tokens without padding, and without [CLS] or [SEP] if the objective's rows lack them.

        If rows have [SEP] between documents, the [SEP] after an example ends that document and is kept.
        """
        ids = np.asarray(example["input_ids"], dtype=np.int64)
        if "attention_mask" in example:
            ids = ids[np.asarray(example["attention_mask"], dtype=bool)]
        shape = self.objective.row_shape(len(ids))
        if not shape.add_cls and len(ids) and ids[0] == self.vocabulary.cls:
            ids = ids[1:]
        if not (shape.add_sep or shape.separate_documents) and len(ids) and ids[-1] == self.vocabulary.sep:
            ids = ids[:-1]
        return ids

    def _fill_value(self, name: str, like: torch.Tensor) -> float:
        if name.endswith("input_ids"):
            return self.vocabulary.pad
        if name == "attention_mask" and like.is_floating_point():
            return torch.finfo(like.dtype).min
        return -100 if name == "labels" else 0


def _stack(
    tensors: Sequence[torch.Tensor], lengths: Sequence[int], fill_value: float, width: int, left: bool
) -> torch.Tensor:
    """Stack tensors of the same rank, each padded to the largest size of each axis.

    An axis of row length (one for labels, two for an attention mask) is padded like the row: to at least `width`, on
    the left or right. Any other axis is padded on the right.
    """
    shapes = list(zip(*(tensor.shape for tensor in tensors), strict=True))
    is_row_axis = [list(sizes) == list(lengths) for sizes in shapes]
    extent = [max(width * row_axis, *sizes) for sizes, row_axis in zip(shapes, is_row_axis, strict=True)]
    out = tensors[0].new_full((len(tensors), *extent), fill_value)
    for row, tensor in zip(out, tensors, strict=True):
        axes = zip(tensor.shape, is_row_axis, strict=True)
        row[tuple(slice(-size, None) if left and row_axis else slice(size) for size, row_axis in axes)] = tensor
    return out


def _content_index(row: Ints) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")
