"""Headstart's network with a module between body and head, for which transformers has no class.

Importing this module registers the model type "headstart_on_top" with transformers' auto classes. Its config contains
the config of the plain network. Stages import it when they open such a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from headstart.adaptation.on_top import LayerSelection, apply_top, build_top, output_with_states
from headstart.adaptation.wrapping import WrappingConfig, settings_of_head


class OnTopConfig(WrappingConfig):
    """The config of the plain network, and of the module on its body."""

    model_type = "headstart_on_top"

    reads: dict[str, Any] | None = None
    """The fields of `LayerSelection`."""
    top: str = "none"
    """The name of the module, as `build_top` knows it."""
    hidden: int = 0
    """The width of a perceptron, or of each direction of an LSTM."""


class OnTopModel(PreTrainedModel):
    """A plain network with a module between body and head; it has the plain network's inputs and outputs."""

    config: OnTopConfig
    config_class = OnTopConfig
    base_model_prefix = "network"
    auto_class: ClassVar[str] = ""
    """The transformers auto class of the plain network."""

    def __init__(
        self, config: OnTopConfig, network: PreTrainedModel | None = None, top: nn.Module | None = None
    ) -> None:
        """Build the plain network and the module, or take the given ones, and hook the module in after the body."""
        super().__init__(config)
        self.selection = LayerSelection.from_dict(config.reads or {})
        self.network: PreTrainedModel = network or getattr(transformers, self.auto_class).from_config(config.plain())
        width = getattr(self.network.config, "hidden_size", 0)
        self.top = top or build_top(config.top, self.selection.last, width, config.hidden)
        self._skips_top = False
        self.base_model.register_forward_pre_hook(self._request_states, with_kwargs=True)
        self.base_model.register_forward_hook(self._apply_top, with_kwargs=True)
        self.post_init()

    @property
    def base_model(self) -> nn.Module:
        """Return the plain body."""
        return self.network.base_model

    def get_input_embeddings(self) -> nn.Module:
        """Return the plain body's input embeddings."""
        return self.base_model.get_input_embeddings()  # type: ignore[no-any-return,operator]

    def set_attn_implementation(self, *arguments: Any, **settings: Any) -> None:
        """Set the attention implementation of the plain body."""
        self.base_model.set_attn_implementation(*arguments, **settings)  # type: ignore[operator]

    def forward(self, *arguments: Any, **inputs: Any) -> Any:
        """Run the plain network; hooks apply the module between body and head."""
        return self.network(*arguments, **inputs)

    @contextmanager
    def without_top(self) -> Iterator[nn.Module]:
        """Yield the body, whose output skips the module inside the context."""
        self._skips_top = True
        try:
            yield self.base_model
        finally:
            self._skips_top = False

    def _request_states(self, _: nn.Module, arguments: Any, inputs: dict[str, Any]) -> Any:
        """Request the hidden states from the body, if the module reads them."""
        return arguments, inputs if self._skips_top else {**inputs, "output_hidden_states": self.selection.last > 0}

    def _apply_top(self, body: nn.Module, arguments: Any, inputs: dict[str, Any], output: ModelOutput) -> ModelOutput:
        """Apply the module to the body's output."""
        if self._skips_top:
            return output
        mask = inputs.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
        states = self.selection.pool_first(apply_top(self.top, self.selection(output), mask), mask)
        return output_with_states(body, type(output), states)

    def _init_weights(self, module: nn.Module) -> None:
        """Keep all weights: the plain network and the module have initialized theirs."""


class OnTopForSequenceClassification(OnTopModel):
    """One label for a text."""

    auto_class = "AutoModelForSequenceClassification"


class OnTopForTokenClassification(OnTopModel):
    """One label for every token."""

    auto_class = "AutoModelForTokenClassification"


class OnTopForQuestionAnswering(OnTopModel):
    """The start and the end of an answer."""

    auto_class = "AutoModelForQuestionAnswering"


class OnTopForMultipleChoice(OnTopModel):
    """A score for each of several choices."""

    auto_class = "AutoModelForMultipleChoice"


_HEADS = (
    OnTopForSequenceClassification, OnTopForTokenClassification, OnTopForQuestionAnswering, OnTopForMultipleChoice,
)  # fmt: skip
HEADS = tuple(head.auto_class for head in _HEADS)
"""Auto classes whose networks have a separate head that reads the body's states."""


def wrap(network: PreTrainedModel, selection: LayerSelection, top: nn.Module, kind: str, hidden: int = 0) -> OnTopModel:
    """Return a Headstart network around a plain one, with a trained module between its body and its head."""
    plain = network.config
    config = OnTopConfig(
        network=plain.to_dict(), reads=asdict(selection), top=kind, hidden=hidden, **settings_of_head(plain)
    )
    head = next(head for head in _HEADS if head.auto_class.removeprefix("AutoModel") in type(network).__name__)
    return head(config, network, top)


AutoConfig.register(OnTopConfig.model_type, OnTopConfig)
for head in _HEADS:
    getattr(transformers, head.auto_class).register(OnTopConfig, head)
