"""A frozen body: no dropout, no gradient, and a cache of the hidden states of each text."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from headstart.adaptation.on_top import LayerSelection, apply_top, output_with_states


class FrozenBody(torch.nn.Module):
    """Replaces a model's body: caches its hidden states, and runs the trainable module on top of them every time.

    The cache key is the text's token ids, so callers need not pass identities through the model. A pooler inside the
    body (BERT's) belongs to the head, and runs every time too.
    """

    def __init__(
        self, body: torch.nn.Module, selection: LayerSelection, top: torch.nn.Module, cache_bytes: int
    ) -> None:
        """Wrap a body whose pre-trained parameters are frozen."""
        super().__init__()
        self.body: Any = body.eval()
        self.selection, self.top = selection, top
        self.free_bytes = cache_bytes
        self.cache: dict[bytes, torch.Tensor] = {}
        self.output_class: type[ModelOutput] = BaseModelOutput
        self.flops_per_token = 0.0
        """FLOPs of the body per token, set by the stage that trains."""
        self.tokens_read = 0
        """Tokens that the body has computed in training, without those from the cache."""

    @property
    def flops(self) -> float:
        """The FLOPs that the body has spent in training."""
        return self.flops_per_token * self.tokens_read

    def train(self, mode: bool = True) -> FrozenBody:
        """Stay in evaluation mode."""
        return self

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        """Return the body's output, from the cache for texts seen before."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # One copy to the host: ids are not negative, so -1 marks the padding.
        ids = torch.where(attention_mask.bool(), input_ids, -1).cpu()
        mask = ids >= 0
        keys = [row[row_mask].numpy().tobytes() for row, row_mask in zip(ids, mask, strict=True)]
        missing = [row for row, key in enumerate(keys) if key not in self.cache]
        states_of = {key: self.cache[key] for key in keys if key in self.cache}
        if missing:
            selected = {
                name: value[missing] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
            }
            selected |= {"input_ids": input_ids[missing], "attention_mask": attention_mask[missing]}
            selected["output_hidden_states"] = self.selection.last > 0
            # Outside autocast: the cache must not depend on whether training or evaluation came first.
            with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
                output = self.body(**selected)
                states = self.selection(output)
            self.output_class = type(output)
            if torch.is_grad_enabled():
                self.tokens_read += int(mask[missing].sum())
            lengths = mask[missing].sum(1).tolist()
            for row, own in zip(
                missing, states.flatten(0, 1)[_places(mask[missing], states)].split(lengths), strict=True
            ):
                states_of[keys[row]] = own.clone()
                self._store(keys[row], states_of[keys[row]])
        width = next(iter(states_of.values())).shape[-1]
        padded = torch.zeros(*input_ids.shape, width, device=input_ids.device)
        padded.flatten(0, 1)[_places(mask, padded)] = torch.cat([states_of[key] for key in keys]).to(padded.dtype)
        states = self.selection.pool_first(apply_top(self.top, padded, attention_mask), attention_mask)
        return output_with_states(self.body, self.output_class, states)

    def _store(self, key: bytes, states: torch.Tensor) -> None:
        """Add the states of a text to the cache, if they fit."""
        size = states.numel() * states.element_size()
        if size <= self.free_bytes and key not in self.cache:
            self.cache[key] = states
            self.free_bytes -= size


def _places(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the places of the texts' tokens in flattened rows, on the device of `like`; `mask` is on the host."""
    return mask.flatten().nonzero().flatten().to(like.device)
