"""The part of a network above its body, run on states that the body computed for rows of several tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling, ModelOutput

from headstart.adaptation.on_top import LayerSelection, apply_top, output_with_states
from headstart.stages.serve.adapter_weights import NotShareable


class GivenStates(nn.Module):
    """Replaces the body of a network: returns the states that were set, with the output of the network's pooler."""

    def __init__(self, body: nn.Module) -> None:
        """Keep the pooler and the config of a body."""
        super().__init__()
        self.pooler = getattr(body, "pooler", None)
        self.pooler_activation = getattr(body, "pooler_activation", None)
        self.config = body.config
        self.states = torch.empty(0)

    def forward(self, *_: Any, **__: Any) -> ModelOutput:
        """Return the states that were set, whatever the inputs."""
        kind = BaseModelOutput if self.pooler is None else BaseModelOutputWithPooling
        return output_with_states(self, kind, self.states)


class Skeleton:
    """A network without weights and without a body, which all heads of one class and one config share."""

    def __init__(self, model_class: Any, config: Any) -> None:
        """Build the network on torch's meta device, which allocates nothing."""
        self.lock = threading.Lock()
        """Held from `Head.read` to the end of the call: the states and the weights are in the skeleton meanwhile."""
        with torch.device("meta"):
            model: PreTrainedModel = model_class(config)
        self.prefix = model.base_model_prefix
        self.given: GivenStates | None = None
        if model.base_model is not model:
            self.given = GivenStates(model.base_model)
            setattr(model, self.prefix, self.given)
        self.model = model.eval()
        names = self.model.state_dict().keys() if self.given is not None else ()
        self.names = frozenset(names)
        """The names of the head's tensors; a body alone has none."""


class Head:
    """The head of one task: a skeleton and the task's tensors. `Task.predict` takes it in place of the network."""

    def __init__(
        self, skeleton: Skeleton, tensors: Mapping[str, torch.Tensor], selection: LayerSelection | None = None,
        top: nn.Module | None = None,
    ) -> None:  # fmt: skip
        """Keep the tensors that the skeleton needs; `selection` and `top` are those of `headstart_on_top` networks.

        Raises:
            NotShareable: a tensor is missing.
        """
        missing = sorted(skeleton.names - tensors.keys())
        if missing:
            raise NotShareable(f"its head lacks {missing[0]}")
        self.skeleton, self.selection, self.top = skeleton, selection or LayerSelection(), top
        self.tensors = {name: tensors[name] for name in skeleton.names}
        self._states = torch.empty(0)

    @property
    def size(self) -> int:
        """The memory of the tensors in bytes."""
        tensors = [*self.tensors.values(), *(self.top.parameters() if self.top is not None else ())]
        return sum(tensor.nbytes for tensor in tensors)

    def read(self, output: Any, rows: slice, mask: torch.Tensor) -> None:
        """Set the states that the next call reads: those of some rows of the body's output, without excess padding."""
        length = mask.shape[1]
        if self.selection.last:
            # An empty field would count: `LayerSelection` reads by name.
            output = BaseModelOutput(hidden_states=tuple(layer[rows, :length] for layer in output.hidden_states))
            states = self.selection(output)
        else:
            states = output[0][rows, :length]
        if self.top is not None:
            states = apply_top(self.top, states, mask)
        self._states = self.selection.pool_first(states, mask)

    def modules(self) -> Iterator[nn.Module]:
        """Yield the modules of the head."""
        return self.skeleton.model.modules()

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Return the output of the network for the states that were set."""
        if self.skeleton.given is None:
            return (self._states,)
        self.skeleton.given.states = self._states
        return torch.func.functional_call(self.skeleton.model, self.tensors, (), inputs)
