"""Bottleneck adapters as a peft method, which peft lacks; saving, loading, switching and stacking are peft's.

An adapter is a small network with a narrow middle; its output is added to the output of a matrix, or to the input of
the norm that follows. Importing this module
registers the method with peft, so that `PeftModel.from_pretrained` loads saved adapters. Several active adapters run
one after the other, in the order of their activation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftConfig, PeftType
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import register_peft_method
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

_NAME = "headstart_bottleneck"


def _add_peft_type() -> PeftType:
    """Add a member to peft's enum of methods, in which `register_peft_method` looks up the name."""
    key = _NAME.upper()
    member = str.__new__(PeftType, key)
    member._name_ = member._value_ = key
    setattr(PeftType, key, member)
    PeftType._member_names_.append(key)
    PeftType._member_map_[key] = PeftType._value2member_map_[key] = member
    return member


_TYPE = _add_peft_type()


@dataclass
class BottleneckConfig(PeftConfig):
    """The settings that peft writes to adapter_config.json."""

    target_modules: list[str] | set[str] | str | None = field(
        default=None, metadata={"help": "names, or ends of names, of the matrices that get an adapter"}
    )
    modules_to_save: list[str] | None = field(default=None, metadata={"help": "modules that are trained and saved"})
    reduction: int = field(default=16, metadata={"help": "hidden size divided by the bottleneck width"})
    activation: str = field(default="relu", metadata={"help": "the activation function, by transformers' name"})
    reads: str = field(
        default="matrix",
        metadata={
            "help": "matrix: the output of the target; norm: the target is a norm, whose output is read, and which "
            "is applied to the sum again; residual: the output of the target plus its residual"
        },
    )
    residual_norms: dict[str, str] | None = field(
        default=None, metadata={"help": "for `residual`: each target, and the norm whose input is its residual"}
    )

    def __post_init__(self) -> None:
        """Set the peft type."""
        super().__post_init__()
        self.peft_type = _TYPE
        if isinstance(self.target_modules, list):
            self.target_modules = set(self.target_modules)


class BottleneckLayer(torch.nn.Module, BaseTunerLayer):
    """A matrix or a norm with one or more adapters after it."""

    adapter_layer_names = ("bottleneck_down", "bottleneck_up")

    def __init__(self, base_layer: torch.nn.Module, adapter_name: str, config: BottleneckConfig) -> None:
        """Wrap a matrix or a norm, and add the first adapter."""
        super().__init__()
        self.base_layer = base_layer
        self.bottleneck_down, self.bottleneck_up = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        self.functions: dict[str, Any] = {}
        self.reads: dict[str, str] = {}
        self.residual: torch.Tensor | None = None
        self._disable_adapters, self.merged_adapters = False, []
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: BottleneckConfig) -> None:
        """Add an adapter that starts as the identity (Houlsby et al. start near it, with weights of size 0.01)."""
        base: Any = self.get_base_layer()
        # The weight of a norm has one axis, that of transformers' Conv1D the output last.
        width: int = base.weight.shape[-1 if isinstance(base, Conv1D) else 0]
        middle = max(1, width // config.reduction)
        self.bottleneck_down[adapter_name] = torch.nn.Linear(width, middle)
        self.bottleneck_up[adapter_name] = torch.nn.Linear(middle, width)
        for parameter in self.bottleneck_up[adapter_name].parameters():
            torch.nn.init.zeros_(parameter)
        self.functions[adapter_name], self.reads[adapter_name] = ACT2FN[config.activation], config.reads
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def forward(self, x: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        """Run the target, then the active adapters in order."""
        states: torch.Tensor = self.base_layer(x, *args, **keywords)
        for name in () if self.disable_adapters else self.active_adapters:
            if name not in self.bottleneck_down:
                continue
            match self.reads[name]:
                case "norm":
                    x = x + self._adapted(name, states)
                    states = self.base_layer(x, *args, **keywords)
                case "residual":
                    assert self.residual is not None, "the norm before the block has run"
                    states = states + self._adapted(name, self.residual + states)
                case _:
                    states = states + self._adapted(name, states)
        self.residual = None
        return states

    def keep_residual(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the input of the norm before the block, as a forward pre-hook of the norm."""
        self.residual = inputs[0]

    def _adapted(self, name: str, states: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.bottleneck_up[name](self.functions[name](self.bottleneck_down[name](states)))
        return adapted


class BottleneckModel(BaseTuner):
    """A network with adapters after some of its matrices."""

    prefix = "bottleneck_"
    tuner_layer_cls = BottleneckLayer
    target_module_mapping = {}  # noqa: RUF012 - peft declares it as an instance attribute

    def _create_and_replace(
        self, peft_config: Any, adapter_name: str, target: Any, target_name: str, parent: Any, current_key: str,
        parameter_name: str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(target, BottleneckLayer):
            target.update_layer(adapter_name, peft_config)
            return
        layer = BottleneckLayer(target, adapter_name, peft_config)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        if peft_config.reads == "residual":
            norm = peft_config.residual_norms[current_key]
            self.model.get_submodule(norm).register_forward_pre_hook(layer.keep_residual)
        self._replace_module(parent, target_name, layer, target)


register_peft_method(name=_NAME, config_cls=BottleneckConfig, model_cls=BottleneckModel, prefix="bottleneck_")
