"""What prompting tasks share: a language model with its pre-training head scores words, and nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from headstart.core.data import Batch
from headstart.tasks.base import PRETRAINING_HEADS, Padding
from headstart.tasks.word_scores import word_scores

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SHOTS = Field(
    0,
    ge=0,
    description="number of training rows shown with their answers in each prompt; the seed selects and orders them",
)
BETWEEN = Field("\n\n", description="the separator between the rows of a prompt")
BLANK = Field(
    None,
    description="for encoder-decoders, what the encoder reads in place of {label}. sentinel: T5's <extra_id_0>, after "
    "which the decoder writes the word; mask: [MASK], and the decoder writes the whole text, as in BART; none: "
    "nothing, and the decoder writes the word, as a fine-tuned model does. Default: the first that the tokenizer has",
)


class Untrained:
    """A task that only reads what a model has learned; comes before the task's class among the bases."""

    learns: ClassVar[bool] = False

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Raise: prompting has no training loss."""
        raise NotImplementedError("prompting has no training loss")


class Prompted(Untrained):
    """A task whose predictions are the log-probabilities of words; comes before the task's class among the bases."""

    families: ClassVar[tuple[str, ...]] = ("decoder", "encoder", "encoder-decoder")
    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "positions": Padding(0),
        "targets": Padding(-100),
        "labels": Padding(-100),
    }

    def auto_class(self, family: str) -> str:
        """Return the auto class with the pre-training head."""
        return PRETRAINING_HEADS[family]

    def head_settings(self) -> dict[str, Any]:
        """Return no settings: the pre-training head is used."""
        return {}

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the log-probabilities of each feature's words."""
        return word_scores(model, batch)
