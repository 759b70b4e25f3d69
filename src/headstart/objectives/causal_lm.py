"""Causal language modeling: predict each token of a row from those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Rows, RowShape, Vocabulary
from headstart.core.lazy import torch
from headstart.objectives.attention import causal_states
from headstart.objectives.chunked import TextObjective

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalLM(TextObjective):
    """Predict every token from those before it, including the end of a document (GPT).

    A row is [CLS] followed by text with [SEP] after each document. [CLS] is the beginning-of-text token and [SEP] the
    end-of-text token in the model's config, so `generate` uses them. Batches involve no randomness.

    An encoder is trained with causal attention and its masked-LM head, and does not predict [SEP]. The result is still
    an encoder: masked_lm continues it. Such a detour before masked LM can adapt a checkpoint to a domain better than
    masked LM alone (Touchent and de la Clergerie 2026).
    """

    paper: ClassVar[str] = "Radford et al. 2018, GPT; encoders: Touchent and de la Clergerie 2026"
    families: ClassVar[tuple[str, ...]] = ("decoder", "encoder")
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    class Config(Section):
        """The family, and the memory used by the logits."""

        newer: ClassVar[tuple[str, ...]] = ("family",)

        name: Literal["causal_lm"] = "causal_lm"
        family: Literal["decoder", "encoder"] = Field(
            "decoder", description="family of the backbone; must equal that of backbone"
        )
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or CausalLM.Config(**settings)
        self.families = (self.config.family,)  # type: ignore[misc]  # the class trains both, an instance one of them

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] …` with [SEP] between documents; no [SEP] at the end, where the text continues."""
        return RowShape(seq_length, add_sep=False)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network with its head; that of an encoder is its masked-LM head."""
        if not self._is_encoder:
            return make(self.auto_class)
        from headstart.objectives.causal_lm_network import CausalEncoder

        return CausalEncoder(self, make("AutoModelForMaskedLM"))

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the only part to save."""
        return {"": self.network_of(module)}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Return the unchanged rows; labels are the same tokens except special ones (a decoder predicts [SEP])."""
        ids = torch.from_numpy(rows.ids.copy())  # (rows, length)
        predicted = torch.from_numpy(~vocabulary.special[rows.ids])
        if not self._is_encoder:
            predicted |= ids == vocabulary.sep
        predicted[:, 0] = False
        return {"input_ids": ids, "labels": ids.masked_fill(~predicted, -100), "weights": predicted.float()}

    def predictions(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the network without its head and return the predicting states with their labels and weights."""
        if not self._is_encoder:
            return super().predictions(model, batch)
        states = causal_states(model.network, batch["input_ids"], batch.get("attention_mask"))
        return states[:, :-1], batch["labels"][:, 1:], batch["weights"][:, 1:]

    def network_of(self, model: Any) -> PreTrainedModel:
        """Return the network of the module; a decoder is the module itself."""
        network: PreTrainedModel = model.network if self._is_encoder else model
        return network

    @property
    def _is_encoder(self) -> bool:
        return self.config.family == "encoder"
