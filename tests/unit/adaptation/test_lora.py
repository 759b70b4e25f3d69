"""LoRA in every layout: what moves, what it weighs, what is saved."""

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


def thin(model, targets: list[str], rank: int) -> int:
    """The parameters of a thin pair beside each matrix."""
    matrices = [model.get_submodule(name) for name in find(model, targets)]
    return sum(rank * sum(matrix.weight.shape) for matrix in matrices)


def weight_of(model, modules: list[str]) -> int:
    return sum(p.numel() for name in modules for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize("layout", TRANSFORMERS)
def test_it_starts_as_the_checkpoint_and_moves_exactly_the_pairs_and_the_head(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = given.source.pretrained()
    head = head_modules(plain, given.source.new_parameters())
    share = thin(plain, [*PARTS], 4) + weight_of(plain, head)
    method = lora()
    model = method.adapt(given.source)
    assert count(model) == share
    torch.testing.assert_close(given.outputs(model), given.outputs(plain), atol=1e-5, rtol=1e-4)
    could, did = given.train(model)
    assert could == did == {name for group in method.groups(model) for name in group.names}
    assert all("lora_" in name or "modules_to_save" in name for name in did)
    said = given.outputs(model)
    merged = lora(merge=True).finish(copy.deepcopy(model))
    assert type(merged) is type(plain)
    torch.testing.assert_close(given.outputs(merged), said, atol=1e-4, rtol=0)
    merged.save_pretrained(str(tmp_path / "merged"))
    loaded, info = getattr(transformers, CLASSIFIER).from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(given.outputs(loaded), said, atol=1e-4, rtol=0)
    method.finish(model).save_pretrained(str(tmp_path / "adapter"))
    again = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path / "adapter"))
    torch.testing.assert_close(given.outputs(again), said, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("targets", "rank"), [(["query", "value"], 8), (["key"], 1), (["intermediate.dense"], 2)])
def test_rank_and_targets_are_what_they_say(targets, rank, pretrained):
    given = pretrained("bert", "AutoModelForMaskedLM")
    model = lora(targets=targets, rank=rank, alpha=3).adapt(given.source)
    assert count(model) == thin(given.source.pretrained(), targets, rank)
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    assert all(layer.scaling["default"] == 3 / rank for layer in layers)


def test_dropout_is_on_what_the_pairs_read(pretrained):
    model = lora(dropout=0.3).adapt(pretrained("bert").source)
    drops = [module.lora_dropout["default"] for module in model.modules() if hasattr(module, "lora_dropout")]
    assert drops and all(drop.p == 0.3 for drop in drops)


def test_gpt2s_transposed_matrices_are_known_as_such(pretrained):
    given = pretrained("gpt2")
    model = lora().adapt(given.source)
    assert any(isinstance(module, Conv1D) for module in model.modules())
    assert model.peft_config["default"].fan_in_fan_out


def test_a_head_that_came_with_the_checkpoint_is_trained_too(pretrained, tmp_path):
    given = pretrained("roberta")
    given.source.pretrained().save_pretrained(str(tmp_path))
    again = type(given)(tmp_path)
    model = lora().adapt(again.source)
    assert not again.source.new_parameters()
    assert {name for name in again.train(model)[1] if "modules_to_save" in name} == {
        f"base_model.model.classifier.{part}.modules_to_save.default.{kind}"
        for part in ("dense", "out_proj") for kind in ("weight", "bias")
    }  # fmt: skip


def test_a_language_models_output_is_no_new_head(pretrained):
    given = pretrained("gpt2", "AutoModelForCausalLM")
    assert all("lora_" in name for name in given.train(lora().adapt(given.source))[1])


def test_equal_adapters_make_equal_files(pretrained, tmp_path):
    for name in ("one", "other"):
        method = lora()
        method.finish(method.adapt(pretrained("bert").source)).save_pretrained(str(tmp_path / name))
    one, other = (tmp_path / name for name in ("one", "other"))
    named = json.loads((one / "adapter_config.json").read_text(encoding="utf-8"))["target_modules"]
    assert named == sorted(named)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_lstms_are_refused(pretrained):
    given = pretrained("bert")
    assert "LSTM" in lora().supports(given.source.task, "bilm")
    assert lora().supports(given.source.task, "encoder") is None


def test_its_own_rate_stands_in_for_trainings():
    assert Lora.Config().learning_rate == 2e-3
    assert Lora.Config(learning_rate=None).learning_rate is None
