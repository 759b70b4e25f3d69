"""Which matrices of a network play which part, by the names that transformers gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headstart.core.errors import RecipeError

_FUSED = "Wqkv|c_attn|qkv_proj|query_key_value"
"""One matrix for queries, keys and values: ModernBERT's, GPT-2's and others'."""

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
"""What the matrices of a layer are for, and how their names end.

XLNet keeps the matrices of its attention as bare parameters, which nothing can be wrapped around: there the
feed-forward part is all that is found.
"""


def find(model: PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """Return the full names of the matrices that are meant: by their part in a layer, or by the end of their name."""
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    found: set[str] = set()
    for target in wanted:
        # Inside a numbered layer: heads have matrices of the same names.
        ends = rf".*\.\d+\.(?:.+\.)?(?:{PARTS[target]})" if target in PARTS else rf"(?:.+\.)?{re.escape(target)}"
        meant = {name for name in names if re.fullmatch(ends, name)}
        if not meant and target not in PARTS:
            raise _unknown(model, target, names)
        found |= meant
    if not found:
        raise _unknown(model, ", ".join(wanted), names)
    return [name for name in names if name in found]


def _unknown(model: PreTrainedModel, wanted: str, names: Sequence[str]) -> RecipeError:
    kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names)
    return RecipeError(
        f"adaptation.targets has {wanted}, which no matrix of {type(model).__name__} is",
        allowed=f"Parts: {', '.join(PARTS)}; or the ends of names, of which it has: {', '.join(kinds)}",
        do="Mend adaptation.targets",
    )
