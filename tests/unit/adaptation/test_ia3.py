"""(IA)³ in every layout."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import PeftModel
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import count
from transformers.pytorch_utils import Conv1D

from headstart.adaptation.ia3 import IA3
from headstart.adaptation.peft_base import head_modules
from headstart.adaptation.targets import find

TRANSFORMERS = [layout for layout, family in LAYOUTS.items() if family != "bilm"]


def sides(matrix) -> tuple[int, int]:
    """The input and output sizes of a matrix."""
    return tuple(matrix.weight.shape) if isinstance(matrix, Conv1D) else (matrix.in_features, matrix.out_features)


@pytest.mark.parametrize("layout", TRANSFORMERS)
def test_it_trains_a_vector_for_keys_values_and_inner_activations(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = given.source.pretrained()
    inner = find(plain, ["ffn_out"])
    outer = [name for name in find(plain, ["key", "value", "ffn_out"]) if name not in inner]
    head = head_modules(plain, given.source.new_parameters())
    expected = sum(sides(plain.get_submodule(name))[0] for name in inner)
    expected += sum(sides(plain.get_submodule(name))[1] for name in outer)
    expected += sum(p.numel() for name in head for p in plain.get_submodule(name).parameters())
    method = IA3()
    model = method.adapt(given.source)
    assert count(model) == expected
    torch.testing.assert_close(given.outputs(model), given.outputs(plain), atol=1e-5, rtol=1e-4)
    trainable, changed = given.train(model)
    assert changed == trainable and all("ia3_" in name or "modules_to_save" in name for name in changed)
    outputs = given.outputs(model)
    merged = IA3(IA3.Config(merge=True)).finish(copy.deepcopy(model))
    assert type(merged) is type(plain)
    torch.testing.assert_close(given.outputs(merged), outputs, atol=1e-4, rtol=0)
    method.finish(model).save_pretrained(str(tmp_path))
    loaded = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path))
    torch.testing.assert_close(given.outputs(loaded), outputs, atol=1e-5, rtol=1e-4)
