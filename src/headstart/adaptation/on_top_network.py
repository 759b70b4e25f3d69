"""A network of ours: a plain body, a small part on top of it, and a plain head; no class of transformers holds that.

Importing this module tells transformers' auto classes of the type "headstart_on_top", whose config holds that of the
plain network. Stages import it when a folder holds one.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from headstart.adaptation.on_top import Reads, build_top, dressed
from headstart.core import registry


class OnTopConfig(PreTrainedConfig):
    """The config of the plain network, and what stands on its body."""

    model_type = "headstart_on_top"

    network: dict[str, Any] | None = None
    """The plain network's own config, as its config.json would have it."""
    reads: dict[str, Any] | None = None
    """The fields of `Reads`."""
    top: str = "none"
    hidden: int = 0

    def plain(self) -> PreTrainedConfig:
        """Return the plain network's config."""
        assert self.network is not None, "a config without a network describes none"
        kind = self.network["model_type"]
        if kind in registry.NETWORKS:
            importlib.import_module(registry.NETWORKS[kind])
        return AutoConfig.for_model(**copy.deepcopy(self.network))


class OnTopModel(PreTrainedModel):
    """A plain network whose body has a part on top; called and answering as the plain one does."""

    config: OnTopConfig
    config_class = OnTopConfig
    base_model_prefix = "network"
    auto_class: ClassVar[str] = ""
    """The auto class of transformers that makes the plain network."""

    def __init__(
        self, config: OnTopConfig, network: PreTrainedModel | None = None, top: nn.Module | None = None
    ) -> None:
        """Build the plain network and the part on top, or take them; between body and head the part does its work."""
        super().__init__(config)
        self.reads = Reads(**(config.reads or {}))
        self.network: PreTrainedModel = network or getattr(transformers, self.auto_class).from_config(config.plain())
        width = getattr(self.network.config, "hidden_size", 0)
        self.top = top or build_top(config.top, self.reads.last, width, config.hidden)
        self._is_bare = False
        self.base_model.register_forward_pre_hook(self._ask, with_kwargs=True)
        self.base_model.register_forward_hook(self._put_on_top, with_kwargs=True)
        self.post_init()

    @property
    def base_model(self) -> nn.Module:
        """Return the plain body, as pre-training knows it."""
        return self.network.base_model

    def get_input_embeddings(self) -> nn.Module:
        """Return the plain body's table of vectors."""
        return self.base_model.get_input_embeddings()  # type: ignore[no-any-return,operator]

    def set_attn_implementation(self, *arguments: Any, **settings: Any) -> None:
        """Choose how the plain body attends."""
        self.base_model.set_attn_implementation(*arguments, **settings)  # type: ignore[operator]

    def forward(self, *arguments: Any, **inputs: Any) -> Any:
        """Return what the plain network's head makes of the states that the part on top gives it."""
        return self.network(*arguments, **inputs)

    @contextmanager
    def bare(self) -> Iterator[nn.Module]:
        """Give the body as it is without the part on top, for as long as the context lasts."""
        self._is_bare = True
        try:
            yield self.base_model
        finally:
            self._is_bare = False

    def _ask(self, _: nn.Module, arguments: Any, inputs: dict[str, Any]) -> Any:
        """Let the body tell the states of its layers where they are read."""
        return arguments, inputs if self._is_bare else {**inputs, "output_hidden_states": self.reads.last > 0}

    def _put_on_top(self, body: nn.Module, _: Any, inputs: dict[str, Any], output: ModelOutput) -> ModelOutput:
        """Give the head what the part on top makes of them."""
        if self._is_bare:
            return output
        states = self.reads.first(self.top(self.reads(output)), inputs.get("attention_mask"))
        return dressed(body, type(output), states)

    def _init_weights(self, module: nn.Module) -> None:
        """Leave all weights as they are: the plain network has drawn its own, and the part on top begins as it must."""


class OnTopForSequenceClassification(OnTopModel):
    """One label for a text."""

    auto_class = "AutoModelForSequenceClassification"


class OnTopForTokenClassification(OnTopModel):
    """One label for every token."""

    auto_class = "AutoModelForTokenClassification"


class OnTopForQuestionAnswering(OnTopModel):
    """Where an answer begins and ends."""

    auto_class = "AutoModelForQuestionAnswering"


class OnTopForMultipleChoice(OnTopModel):
    """A number for each of several choices."""

    auto_class = "AutoModelForMultipleChoice"


_HEADS = (
    OnTopForSequenceClassification, OnTopForTokenClassification, OnTopForQuestionAnswering, OnTopForMultipleChoice,
)  # fmt: skip
HEADS = tuple(head.auto_class for head in _HEADS)
"""Auto classes whose networks have a head of their own on a body, which it reads position by position."""


def around(network: PreTrainedModel, reads: Reads, top: nn.Module, kind: str, hidden: int = 0) -> OnTopModel:
    """Return a network of ours around a plain one, with a trained part between its body and its head."""
    plain = network.config
    named = {key: getattr(plain, key) for key in ("id2label", "label2id", "problem_type", "pad_token_id")}
    config = OnTopConfig(network=plain.to_dict(), reads=asdict(reads), top=kind, hidden=hidden, **named)
    head = next(head for head in _HEADS if head.auto_class.removeprefix("AutoModel") in type(network).__name__)
    return head(config, network, top)


AutoConfig.register(OnTopConfig.model_type, OnTopConfig)
for head in _HEADS:
    getattr(transformers, head.auto_class).register(OnTopConfig, head)
