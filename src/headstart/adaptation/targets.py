"""The weight matrices of a network by their role, found by transformers' module names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.core.errors import RecipeError
from headstart.core.lazy import torch, transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FUSED = "Wqkv|c_attn|qkv_proj|query_key_value"
"""Fused matrices for queries, keys and values: ModernBERT, GPT-2 and others."""

PARTS = {
    "query": f"query|query_proj|q_proj|q_lin|q|{_FUSED}",
    "key": f"key|key_proj|k_proj|k_lin|k|{_FUSED}",
    "value": f"value|value_proj|v_proj|v_lin|v|{_FUSED}",
    "attention_out": r"attention\.(?:output\.)?dense|attention\.out_lin|\w*attn\.(?:Wo|c_proj|o_proj|out_proj)|"
    r"\w+Attention\.o",
    "ffn_in": r"intermediate\.dense|mlp\.(?:Wi|c_fc|gate_proj|up_proj|gate_up_proj|dense_h_to_4h)|ffn|ffn\.lin1|"
    r"\w+Dense\.wi\w*|fc1|ff\.layer_1",
    "ffn_out": r"(?<!attention\.)output\.dense|mlp\.(?:Wo|c_proj|down_proj|dense_4h_to_h)|ffn_output|ffn\.lin2|"
    r"\w+Dense\.wo|fc2|ff\.layer_2",
}
"""The roles of a layer's matrices, and patterns for the ends of their names.

XLNet's attention matrices are bare parameters, which cannot be wrapped: only its feed-forward matrices are found.
"""


_ALWAYS_AFTER = ("LayerNorm", "full_layer_layer_norm", "output_layer_norm")
"""Names of norms after the feed-forward block, in BERT and its relatives, ALBERT and DistilBERT."""
_FEED_FORWARD_NORMS = (
    *_ALWAYS_AFTER,
    "layer_norm",
    "final_layer_norm",
    "mlp_norm",
    "ln_2",
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
)
"""Names of norms of the feed-forward block: T5 and XLNet, BART, ModernBERT, GPT-2, Gemma, Llama."""
_POST_NORM = ("bart", "marian", "blenderbot-small", "xlnet")
"""Model types whose norms are after the blocks, although their names do not tell."""


def find(model: PreTrainedModel, targets: Sequence[str]) -> list[str]:
    """Return the full names of the matrices with the given roles or ends of names."""
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | transformers.pytorch_utils.Conv1D)
    ]
    selected: set[str] = set()
    for target in targets:
        matches = {name for name in names if re.fullmatch(pattern_of(target), name)}
        if not matches and target not in PARTS:
            raise _unknown(model, target, names)
        selected |= matches
    if not selected:
        raise _unknown(model, ", ".join(targets), names)
    return [name for name in names if name in selected]


def feed_forward_norms(model: PreTrainedModel) -> tuple[dict[str, str], bool]:
    """Return the norm that belongs to each feed-forward output matrix, and whether the norms are after the blocks.

    A norm after the block reads the sum of the block's output and its residual; one before it reads the residual.
    """
    modules = dict(model.named_modules())
    norms: dict[str, str] = {}
    for matrix in find(model, ["ffn_out"]):
        # The norm is in the same layer: beside the matrix, or beside the block that contains it.
        *parents, _ = matrix.split(".")
        while parents:
            owner = ".".join(parents)
            norm = next((name for name in _FEED_FORWARD_NORMS if f"{owner}.{name}" in modules), None)
            if norm is not None:
                norms[matrix] = f"{owner}.{norm}"
            if norm is not None or parents.pop().isdigit():
                break
        if matrix not in norms:
            raise RecipeError(
                f"{type(model).__name__} has no norm beside {matrix}",
                allowed=f"Names of norms that are known: {', '.join(_FEED_FORWARD_NORMS)}",
                do="Set adaptation.placement to houlsby",
            )
    is_after = model.config.model_type in _POST_NORM or all(norm.endswith(_ALWAYS_AFTER) for norm in norms.values())
    return norms, is_after


def norms_in_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of the norms with parameters inside numbered layers."""
    return [
        name
        for name, module in model.named_modules()
        if re.search(r"\.\d+\.", name) and "Norm" in type(module).__name__ and any(True for _ in module.parameters())
    ]


def pattern_of(target: str) -> str:
    """Return the pattern that the full names of the matrices with a role or an end of a name match."""
    if target not in PARTS:
        return rf"(?:.+\.)?{re.escape(target)}"
    # Roles match only inside numbered layers, because heads have matrices of the same names.
    # What matches after a later number matches after the first one too, so only that is tried (an atomic group).
    return rf"(?>.*?\.\d+\.)(?:.+\.)?(?:{PARTS[target]})"


def _unknown(model: PreTrainedModel, target: str, names: Sequence[str]) -> RecipeError:
    """Return the error for targets that match no matrix."""
    kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names)
    return RecipeError(
        f"adaptation.targets has {target}, but {type(model).__name__} has no such matrix",
        allowed=f"Roles: {', '.join(PARTS)}; or ends of module names: {', '.join(kinds)}",
        do="Correct adaptation.targets",
    )
