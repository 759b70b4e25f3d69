"""What most objectives share: one network on packed rows, and a collator for scripts that keep their own loop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Ints, Rows, RowShape, Sample
from headstart.core.errors import ArtifactError
from headstart.core.vocabulary import vocabulary_of


class BaseObjective:
    """The answers of an objective that trains one network on packed rows; each may be given anew.

    A batch holds `input_ids` (and `decoder_input_ids`), `weights` with 1 for each prediction and 0 for a place that
    none fits, and whatever else the loss reads.
    """

    auto_class: ClassVar[str] = "AutoModelForMaskedLM"
    """The class of transformers that holds the network and its head, by name."""
    same_passes: ClassVar[bool] = True
    """Batches of as many rows take the same forward passes, whatever the rows: what sharded weights need."""

    def special_tokens(self) -> Sequence[str]:
        """Name no token beside the tokenizer's own."""
        return ()

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for `[CLS] … [SEP]` with [SEP] between documents."""
        return RowShape(seq_length)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the one network with its head."""
        return make(self.auto_class)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the artifact, without companions."""
        return {"": cast(PreTrainedModel, module)}

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in the batch."""
        return float(batch["weights"].sum())

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads, by an encoder and a decoder together."""
        return sum(tensor.numel() for name, tensor in batch.items() if name.endswith("input_ids"))

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch without its weights: right where `labels` are as long as the rows and hold -100."""
        return {name: tensor for name, tensor in batch.items() if name != "weights"}

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator for transformers' Trainer or a plain DataLoader."""
        return ObjectiveCollator(cast(Objective, self), tokenizer, seed)


@dataclass
class LossAndLogits(ModelOutput):
    """What a module of ours, several networks under one roof, returns when it is called as transformers' models are."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None


class ObjectiveCollator:
    """Corrupts tokenized examples and pads them to their longest, for a script that keeps transformers' Trainer.

    The noise of an example depends on (seed, `epoch`, its tokens), never on a global generator or on the
    examples beside it, so a resumed run draws what an undisturbed one would. Trainer does not tell a collator
    which epoch it is in: set `epoch` from a callback's on_epoch_begin, or the noise stays the same.
    """

    def __init__(self, objective: Objective, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Hold the objective and the tables over the tokenizer's ids; raises where a special token is missing."""
        self.objective, self.tokenizer, self.seed, self.epoch = objective, tokenizer, seed, 0
        self.vocabulary = vocabulary_of(tokenizer)
        missing = [token for token in objective.special_tokens() if token not in self.vocabulary.added]
        if missing:
            raise ArtifactError(
                f"the tokenizer lacks {len(missing)} special tokens, {missing[0]} the first",
                do='Call tokenizer.add_special_tokens({"extra_special_tokens": objective.special_tokens()}), '
                "and model.resize_token_embeddings(len(tokenizer))",
            )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the keywords of the model's forward pass: input_ids, attention_mask, labels and what else it takes."""
        rows = [self._row(example) for example in examples]
        left = self.tokenizer.padding_side == "left"
        lengths = [len(row["input_ids"]) for row in rows]
        # Examples that came padded, to a static width perhaps, leave so.
        width = max(len(example["input_ids"]) for example in examples) if "attention_mask" in examples[0] else 0
        return {
            name: _stack([row[name] for row in rows], lengths, self._filler(name, like), width, left)
            for name, like in rows[0].items()
        }

    def rows_of(self, example: dict[str, Any]) -> Rows:
        """Return an example as the one row of a batch, identified by its tokens."""
        ids = self._bare(example)
        return Rows(ids[None], [Sample(self.epoch, _content_index(ids))])

    def _row(self, example: dict[str, Any]) -> dict[str, torch.Tensor]:
        batch = self.objective.corrupt(self.rows_of(example), self.vocabulary, self.seed)
        inputs = {name: tensor[0] for name, tensor in self.objective.as_inputs(batch).items()}
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        return inputs

    def _bare(self, example: dict[str, Any]) -> Ints:
        """Return the example's tokens without padding, and without the frame that the objective's rows lack.

        Where rows have [SEP] between documents, one after an example is the end of that document, and stays.
        """
        ids = np.asarray(example["input_ids"], dtype=np.int64)
        if "attention_mask" in example:
            ids = ids[np.asarray(example["attention_mask"], dtype=bool)]
        shape = self.objective.row_shape(len(ids))
        if not shape.opens and len(ids) and ids[0] == self.vocabulary.cls:
            ids = ids[1:]
        if not (shape.closes or shape.separates) and len(ids) and ids[-1] == self.vocabulary.sep:
            ids = ids[:-1]
        return ids

    def _filler(self, name: str, like: torch.Tensor) -> float:
        if name.endswith("input_ids"):
            return self.vocabulary.pad
        if name == "attention_mask" and like.is_floating_point():
            return torch.finfo(like.dtype).min
        return -100 if name == "labels" else 0


def _stack(
    tensors: Sequence[torch.Tensor], lengths: Sequence[int], filler: float, width: int, left: bool
) -> torch.Tensor:
    """Stack tensors of any one rank, each padded to the largest extent.

    An axis that runs along the row (one for labels, two for a mask of who sees whom) is padded as the row is: to the
    width, at its beginning or at its end. Any other is padded at its end.
    """
    shapes = list(zip(*(tensor.shape for tensor in tensors), strict=True))
    along = [list(sizes) == list(lengths) for sizes in shapes]
    extent = [max(width * runs, *sizes) for sizes, runs in zip(shapes, along, strict=True)]
    out = tensors[0].new_full((len(tensors), *extent), filler)
    for row, tensor in zip(out, tensors, strict=True):
        places = zip(tensor.shape, along, strict=True)
        row[tuple(slice(-size, None) if left and runs else slice(size) for size, runs in places)] = tensor
    return out


def _content_index(row: Ints) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")
