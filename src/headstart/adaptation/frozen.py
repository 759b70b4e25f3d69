"""A frozen body: no dropout, no gradient, and what a head reads of a text is computed once."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from headstart.adaptation.on_top import Reads, dressed


class FrozenBody(torch.nn.Module):
    """Stands in for a model's body; the states that are read are remembered, the part on top works on them anew.

    States are remembered by the text's token ids, so no caller needs to pass identities through the model. A pooler
    inside the body (BERT's) belongs to the head, and works on them anew as well.
    """

    def __init__(self, body: torch.nn.Module, reads: Reads, top: torch.nn.Module, cache_bytes: int) -> None:
        """Wrap a body whose frozen parameters no longer require gradients."""
        super().__init__()
        self.body: Any = body.eval()
        self.reads, self.top = reads, top
        self.room = cache_bytes
        self.known: dict[bytes, torch.Tensor] = {}
        self.kind: type[ModelOutput] = BaseModelOutput
        self.flops_per_token = 0.0
        """What reading a token for the first time costs, as counted by whoever trains."""
        self.tokens_read = 0
        """Tokens that went through the body in training, and not through memory."""

    @property
    def flops(self) -> float:
        """Return what the body has computed in training."""
        return self.flops_per_token * self.tokens_read

    def train(self, mode: bool = True) -> FrozenBody:
        """Stay in evaluation mode whatever the loop asks for."""
        return self

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        """Return the body's output, from memory where the text was seen before."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        real = attention_mask.bool()
        keys = [ids[mask].cpu().numpy().tobytes() for ids, mask in zip(input_ids, real, strict=True)]
        missing = [row for row, key in enumerate(keys) if key not in self.known]
        found = {key: self.known[key] for key in keys if key in self.known}
        if missing:
            chosen = {
                name: value[missing] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
            }
            chosen |= {"input_ids": input_ids[missing], "attention_mask": attention_mask[missing]}
            chosen["output_hidden_states"] = self.reads.last > 0
            # Outside autocast: what is remembered must not depend on who asked first, training or evaluation.
            with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
                output = self.body(**chosen)
                states = self.reads(output)
            self.kind = type(output)
            if torch.is_grad_enabled():
                self.tokens_read += int(real[missing].sum())
            for place, row in enumerate(missing):
                found[keys[row]] = states[place][real[row]]
                self._remember(keys[row], found[keys[row]])
        width = next(iter(found.values())).shape[-1]
        whole = torch.zeros(*input_ids.shape, width, device=input_ids.device)
        for row, key in enumerate(keys):
            whole[row, real[row]] = found[key]
        return dressed(self.body, self.kind, self.reads.first(self.top(whole), attention_mask))

    def _remember(self, key: bytes, states: torch.Tensor) -> None:
        size = states.numel() * states.element_size()
        if size <= self.room and key not in self.known:
            self.known[key] = states
            self.room -= size
