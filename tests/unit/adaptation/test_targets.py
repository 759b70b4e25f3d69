"""Matrices by their role in a layer, in every layout."""

from __future__ import annotations

import re

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS

from headstart.adaptation.targets import PARTS, find
from headstart.core.errors import RecipeError

BERT = {
    "query": {"attention.self.query"}, "key": {"attention.self.key"}, "value": {"attention.self.value"},
    "attention_out": {"attention.output.dense"}, "ffn_in": {"intermediate.dense"}, "ffn_out": {"output.dense"},
}  # fmt: skip
MODERN = {"attention_out": {"attn.Wo"}, "ffn_in": {"mlp.Wi"}, "ffn_out": {"mlp.Wo"}}
EXPECTED: dict[str, dict[str, set[str]]] = {
    "bert": BERT,
    "roberta": BERT,
    "electra": BERT,
    "deberta-v2": BERT | {part: {f"attention.self.{part}_proj"} for part in ("query", "key", "value")},
    "albert": {part: {f"attention.{part}"} for part in ("query", "key", "value")}
    | {"attention_out": {"attention.dense"}, "ffn_in": {"ffn"}, "ffn_out": {"ffn_output"}},
    "modernbert": {part: {"attn.Wqkv"} for part in ("query", "key", "value")} | MODERN,
    "modernbert-decoder": {part: {f"attn.{part[0]}_proj"} for part in ("query", "key", "value")} | MODERN,
    "gpt2": {part: {"attn.c_attn"} for part in ("query", "key", "value")}
    | {"attention_out": {"attn.c_proj"}, "ffn_in": {"mlp.c_fc"}, "ffn_out": {"mlp.c_proj"}},
    "llama": {part: {f"self_attn.{part[0]}_proj"} for part in ("query", "key", "value")}
    | {"attention_out": {"self_attn.o_proj"}, "ffn_in": {"mlp.gate_proj", "mlp.up_proj"}, "ffn_out": {"mlp.down_proj"}},
    "t5": {
        part: {f"SelfAttention.{part[0]}", f"EncDecAttention.{part[0]}"} for part in ("query", "key", "value")
    } | {
        "attention_out": {"SelfAttention.o", "EncDecAttention.o"},
        "ffn_in": {"DenseReluDense.wi"}, "ffn_out": {"DenseReluDense.wo"},
    },
    "bart": {
        part: {f"self_attn.{part[0]}_proj", f"encoder_attn.{part[0]}_proj"} for part in ("query", "key", "value")
    } | {
        "attention_out": {"self_attn.out_proj", "encoder_attn.out_proj"}, "ffn_in": {"fc1"}, "ffn_out": {"fc2"},
    },
    "xlnet": {"ffn_in": {"ff.layer_1"}, "ffn_out": {"ff.layer_2"}},
}  # fmt: skip


@pytest.mark.parametrize("layout", EXPECTED)
def test_each_role_is_found_in_every_layer_and_nowhere_else(layout, network):
    model = network(layout, num_labels=3)
    for part in PARTS:
        expected = EXPECTED[layout].get(part)
        if expected is None:
            with pytest.raises(RecipeError, match=part):
                find(model, [part])
            continue
        inside = {re.sub(r".*\.\d+\.(?=[a-zA-Z])", "", name) for name in find(model, [part])}
        assert inside == expected
    linear = [name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]
    in_layers = [name for name in linear if re.search(r"\.\d+\.", name)]
    assert find(model, [*PARTS]) == in_layers, "all roles together are all matrices of the layers"


def test_every_layout_without_lstms_is_tested():
    assert {layout for layout, family in LAYOUTS.items() if family != "bilm"} == EXPECTED.keys()


def test_a_target_may_be_a_name_or_its_end(network):
    model = network("bert", num_labels=3)
    assert find(model, ["layer.0.attention.self.query"]) == ["bert.encoder.layer.0.attention.self.query"]
    assert find(model, ["pooler.dense", "value"]) == [*find(model, ["value"]), "bert.pooler.dense"]


def test_an_unknown_target_is_rejected_with_the_known_ones(network):
    with pytest.raises(RecipeError, match=r"has uery, but Bert.* no such matrix.*query, key.*attention\.self\.query"):
        find(network("bert", num_labels=3), ["uery"])


def test_a_network_without_known_roles_is_rejected():
    with pytest.raises(RecipeError, match="or ends of module names: 0"):
        find(torch.nn.Sequential(torch.nn.Linear(2, 2)), [*PARTS])
