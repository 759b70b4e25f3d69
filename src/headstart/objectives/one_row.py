"""The base of objectives with an input and a target, which a decoder reads in one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch
from headstart.core.lazy import torch
from headstart.objectives.chunked import TextObjective
from headstart.objectives.prefix_lm import prefix_mask, require_full_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class OneRowSettings(Section):
    """The family, and how a decoder reads the input."""

    newer: ClassVar[tuple[str, ...]] = ("family", "bidirectional_prefix")

    family: Literal["encoder-decoder", "decoder"] = Field(
        "encoder-decoder", description="family of the backbone; must equal that of backbone"
    )
    bidirectional_prefix: bool = Field(
        False, description="a decoder reads the corrupted text with bidirectional attention (prefix LM)"
    )

    @model_validator(mode="after")
    def _prefix_of_a_decoder(self) -> Self:
        if self.bidirectional_prefix and self.family != "decoder":
            raise ValueError(
                "bidirectional_prefix is true, but family is 'encoder-decoder', whose encoder is bidirectional "
                "anyway. Set family to decoder, or remove bidirectional_prefix."
            )
        return self


class OneRowObjective(TextObjective):
    """Base class of objectives whose input and target are one row of a decoder, the target after the input.

    A subclass calls `set_family`, and puts `prefixes` (the tokens before the target, for each row) into the batch of a
    decoder with a bidirectional prefix.
    """

    families: ClassVar[tuple[str, ...]] = ("encoder-decoder", "decoder")
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    def set_family(self) -> None:
        """Limit the instance to the family of its config; the class trains both."""
        self.families = (self.config.family,)  # type: ignore[misc]

    @property
    def is_decoder(self) -> bool:
        """Whether the network is a decoder."""
        return bool(self.config.family == "decoder")

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network with its head; a bidirectional prefix needs full attention in every layer."""
        model = make("AutoModelForCausalLM" if self.is_decoder else self.auto_class)
        if self.config.bidirectional_prefix:
            require_full_attention(model)
        return model

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read by the encoder and the decoder."""
        return batch["input_ids"].numel() + (0 if self.is_decoder else batch["labels"].numel())

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        return super().loss(model, _with_mask(batch))

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, summed over the predicted positions."""
        return super().measure(model, _with_mask(batch))

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of the plain model; a bidirectional prefix has a four-dimensional attention mask."""
        inputs = super().as_inputs(_with_mask(batch))
        inputs.pop("prefixes", None)
        return inputs


def _with_mask(batch: Batch) -> Batch:
    """Return the batch with the attention mask of its prefixes, if it has any; padding is at the end of a row."""
    if "prefixes" not in batch:
        return batch
    return {**batch, "attention_mask": prefix_mask(batch["prefixes"], batch["input_ids"].shape[1])}
