"""Frozen features: the body stays as pre-training left it, a head is trained on its output."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource


class Features(BaseAdaptation):
    """Freeze the body and train the head on its output, which is computed once per text."""

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Devlin et al. 2019, BERT, section 5.3"

    class Config(AdaptationSettings):
        """How much memory the computed features may take."""

        name: Literal["features"] = "features"
        cache_mb: float = Field(2000, ge=0, description="features are kept up to this size, then computed anew")

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or Features.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze whatever came from it inside the body."""
        model = source.pretrained()
        new = source.new_parameters()
        body = model.base_model
        inside = {id(parameter) for parameter in body.parameters()}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in new or id(parameter) not in inside)
        setattr(model, model.base_model_prefix, FrozenBody(body, int(self.config.cache_mb * 1e6)))
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Put the body back in its place, so that the saved model is plain."""
        frozen = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, frozen.body)
        return model


class FrozenBody(torch.nn.Module):
    """Stands in for a model's body: no dropout, no gradient, and each text's states are computed once.

    States are remembered by the text's token ids, so no caller needs to pass identities through the
    model. A body with a trainable part inside (BERT's new pooler) is run each time instead.
    """

    def __init__(self, body: torch.nn.Module, cache_bytes: int) -> None:
        """Wrap a body whose frozen parameters no longer require gradients."""
        super().__init__()
        self.body = body.eval()
        self.room = cache_bytes if not any(p.requires_grad for p in body.parameters()) else 0
        self.known: dict[bytes, torch.Tensor] = {}
        self.kind: type[ModelOutput] = BaseModelOutput

    def train(self, mode: bool = True) -> FrozenBody:
        """Stay in evaluation mode whatever the loop asks for."""
        return self

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        """Return the body's output, from memory where the text was seen before."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if not self.room and not self.known:
            return self.body(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        lengths = attention_mask.sum(1).tolist()
        keys = [input_ids[row, :length].cpu().numpy().tobytes() for row, length in enumerate(lengths)]
        missing = [row for row, key in enumerate(keys) if key not in self.known]
        found = {key: self.known[key] for key in keys if key in self.known}
        if missing:
            chosen = {name: value[missing] for name, value in inputs.items() if isinstance(value, torch.Tensor)}
            # Outside autocast: what is remembered must not depend on who asked first, training or evaluation.
            with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
                output = self.body(input_ids=input_ids[missing], attention_mask=attention_mask[missing], **chosen)
            # A head may ask for a field that its own body's output has, were it but to find it empty (XLNet's `mems`).
            self.kind, states = type(output), output[0]
            for place, row in enumerate(missing):
                found[keys[row]] = states[place, : lengths[row]].clone()
                self._remember(keys[row], found[keys[row]])
        padded = torch.nn.utils.rnn.pad_sequence([found[key] for key in keys], batch_first=True)
        if padded.shape[1] < input_ids.shape[1]:
            padded = torch.nn.functional.pad(padded, (0, 0, 0, input_ids.shape[1] - padded.shape[1]))
        return self.kind(last_hidden_state=padded)

    def _remember(self, key: bytes, states: torch.Tensor) -> None:
        size = states.numel() * states.element_size()
        if size <= self.room and key not in self.known:
            self.known[key] = states
            self.room -= size
