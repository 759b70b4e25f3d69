"""The weights of one task's adapter, by the name of the matrix in the body that each part changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from headstart.checkpoint.load import load_adapter_tensors

_PART = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B|ia3_l|bottleneck_down|bottleneck_up)(?:\.(?P<leaf>\w+))?")
_WRAPPED = "base_model.model."
"""What peft puts before the names of a network's modules."""
_KINDS: dict[str, Literal["lora", "bottleneck", "ia3"]] = {
    "LORA": "lora", "HEADSTART_BOTTLENECK": "bottleneck", "IA3": "ia3",
}  # fmt: skip
_UNSTACKED = ("use_dora", "rank_pattern", "alpha_pattern", "lora_bias", "alora_invocation_tokens", "arrow_config")
"""Variants of LoRA in peft's config that compute more than a scaled product of two matrices."""


class NotShareable(Exception):
    """A fine-tuning whose rows cannot share a forward pass with those of other tasks. The message is a clause."""


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter that is never modified after it was read.

    The tensors of a matrix (width in → width out) are, for LoRA, A (rank, in) and B (out, rank) with its scale; for a
    bottleneck, the weight and bias of the projection down (middle, out) and of the one up (out, middle); for (IA)³ one
    vector, which scales the inputs of the modules in `scales_inputs` and the outputs of the others.
    """

    kind: Literal["lora", "bottleneck", "ia3"]
    modules: Mapping[str, tuple[torch.Tensor, ...]] = field(repr=False)
    activation: str = ""
    scales_inputs: frozenset[str] = frozenset()
    reads: str = "matrix"
    """What a bottleneck reads, as in `BottleneckConfig`."""
    residual_norms: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For a bottleneck that reads the residual: each matrix, and the norm whose input is its residual."""

    @property
    def size(self) -> int:
        """The memory of the tensors in bytes."""
        return sum(tensor.nbytes for tensors in self.modules.values() for tensor in tensors)


def read(folder: Path, prefix: str) -> tuple[AdapterWeights, dict[str, torch.Tensor]]:
    """Read an adapter; returns its weights, and the tensors of the modules that were trained whole (the head).

    Args:
        folder: the output of a fine-tuning with LoRA, bottleneck adapters or (IA)³.
        prefix: the name of the body in the network, such as "bert".

    Raises:
        NotShareable: the adapter changes something other than the matrices of the body.
    """
    config, tensors = load_adapter_tensors(folder)
    kind = _KINDS.get(str(config.get("peft_type")))
    if kind is None:
        raise NotShareable(f"its adapter is of peft's type {config.get('peft_type')}")
    variant = next((name for name in _UNSTACKED if config.get(name)), None)
    if variant is not None or config.get("bias", "none") != "none":
        raise NotShareable(f"its adapter uses {variant or 'trained biases'}")
    parts: dict[str, dict[str, torch.Tensor]] = {}
    whole: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(_WRAPPED)
        match = _PART.fullmatch(name)
        if match is None:
            whole[name] = tensor.float()
        else:
            module = match["module"].removeprefix(f"{prefix}.")
            part = f"{match['part']}.{match['leaf']}" if kind == "bottleneck" else match["part"]
            parts.setdefault(module, {})[part] = tensor.float()
    modules = {module: _tensors(kind, tensors_of, config) for module, tensors_of in parts.items()}
    inputs = frozenset(module for module in modules if kind == "ia3" and _scales_inputs(module, prefix, config))
    norms = {
        module.removeprefix(f"{prefix}."): norm.removeprefix(f"{prefix}.")
        for module, norm in (config.get("residual_norms") or {}).items()
    }
    activation, reads = str(config.get("activation", "")), str(config.get("reads", "matrix"))
    return AdapterWeights(kind, modules, activation, inputs, reads, norms), whole


def _tensors(kind: str, parts: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    match kind:
        case "lora":
            rank = parts["lora_A"].shape[0]
            scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
            return parts["lora_A"], parts["lora_B"] * scale
        case "bottleneck":
            names = (f"bottleneck_{side}.{leaf}" for side in ("down", "up") for leaf in ("weight", "bias"))
            return tuple(parts[name] for name in names)
        case _:
            return (parts["ia3_l"].flatten(),)


def _scales_inputs(module: str, prefix: str, config: Mapping[str, Any]) -> bool:
    """True if (IA)³ scales the inputs of a matrix and not its outputs; peft lists these modules by their names."""
    names = config.get("feedforward_modules") or []
    if isinstance(names, str):
        raise NotShareable("its adapter names feed-forward modules by a pattern")
    return any(f".{prefix}.{module}".endswith(f".{name}") for name in names)
