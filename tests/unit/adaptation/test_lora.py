"""LoRA in every layout: trainable parameters, their number, and the saved files."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from peft import PeftModel
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import CLASSIFIER, count
from transformers.pytorch_utils import Conv1D

from headstart.adaptation.lora import Lora
from headstart.adaptation.peft_base import head_modules
from headstart.adaptation.targets import PARTS, find

TRANSFORMERS = [layout for layout, family in LAYOUTS.items() if family != "bilm"]


def lora(**settings) -> Lora:
    return Lora(Lora.Config(**settings))


def lora_size(model, targets: list[str], rank: int) -> int:
    """The number of parameters of the updates of all target matrices."""
    matrices = [model.get_submodule(name) for name in find(model, targets)]
    return sum(rank * sum(matrix.weight.shape) for matrix in matrices)


def size_of(model, modules: list[str]) -> int:
    return sum(p.numel() for name in modules for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize("layout", TRANSFORMERS)
def test_it_starts_as_the_checkpoint_and_trains_only_the_updates_and_the_head(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = given.source.pretrained()
    head = head_modules(plain, given.source.new_parameters())
    method = lora()
    model = method.adapt(given.source)
    assert count(model) == lora_size(plain, [*PARTS], 4) + size_of(plain, head)
    torch.testing.assert_close(given.outputs(model), given.outputs(plain), atol=1e-5, rtol=1e-4)
    trainable, changed = given.train(model)
    assert trainable == changed == {name for group in method.groups(model) for name in group.names}
    assert all("lora_" in name or "modules_to_save" in name for name in changed)
    outputs = given.outputs(model)
    merged = lora(merge=True).finish(copy.deepcopy(model))
    assert type(merged) is type(plain)
    torch.testing.assert_close(given.outputs(merged), outputs, atol=1e-4, rtol=0)
    merged.save_pretrained(str(tmp_path / "merged"))
    loaded, info = getattr(transformers, CLASSIFIER).from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(given.outputs(loaded), outputs, atol=1e-4, rtol=0)
    method.finish(model).save_pretrained(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path / "adapter"))
    torch.testing.assert_close(given.outputs(loaded), outputs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("targets", "rank"), [(["query", "value"], 8), (["key"], 1), (["intermediate.dense"], 2)])
def test_rank_targets_and_alpha_take_effect(targets, rank, pretrained):
    given = pretrained("bert", "AutoModelForMaskedLM")
    model = lora(targets=targets, rank=rank, alpha=3).adapt(given.source)
    assert count(model) == lora_size(given.source.pretrained(), targets, rank)
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    assert all(layer.scaling["default"] == 3 / rank for layer in layers)


def test_dropout_takes_effect(pretrained):
    model = lora(dropout=0.3).adapt(pretrained("bert").source)
    drops = [module.lora_dropout["default"] for module in model.modules() if hasattr(module, "lora_dropout")]
    assert drops and all(drop.p == 0.3 for drop in drops)


def test_gpt2s_transposed_matrices_are_marked_as_such(pretrained):
    given = pretrained("gpt2")
    model = lora().adapt(given.source)
    assert any(isinstance(module, Conv1D) for module in model.modules())
    assert model.peft_config["default"].fan_in_fan_out


def test_a_head_of_the_checkpoint_trains_too(pretrained, tmp_path):
    given = pretrained("roberta")
    given.source.pretrained().save_pretrained(str(tmp_path))
    again = type(given)(tmp_path)
    model = lora().adapt(again.source)
    assert not again.source.new_parameters()
    assert {name for name in again.train(model)[1] if "modules_to_save" in name} == {
        f"base_model.model.classifier.{part}.modules_to_save.default.{kind}"
        for part in ("dense", "out_proj") for kind in ("weight", "bias")
    }  # fmt: skip


def test_a_language_models_output_layer_does_not_count_as_a_head(pretrained):
    given = pretrained("gpt2", "AutoModelForCausalLM")
    assert all("lora_" in name for name in given.train(lora().adapt(given.source))[1])


def test_equal_adapters_give_equal_files(pretrained, tmp_path):
    for name in ("one", "other"):
        method = lora()
        method.finish(method.adapt(pretrained("bert").source)).save_pretrained(str(tmp_path / name))
    one, other = (tmp_path / name for name in ("one", "other"))
    targets = json.loads((one / "adapter_config.json").read_text(encoding="utf-8"))["target_modules"]
    assert targets == sorted(targets)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_lstms_are_rejected(pretrained):
    given = pretrained("bert")
    assert "LSTM" in lora().supports(given.source.task, "bilm")
    assert lora().supports(given.source.task, "encoder") is None


def test_it_has_its_own_learning_rate():
    assert Lora.Config().learning_rate == 2e-3
    assert Lora.Config(learning_rate=None).learning_rate is None
