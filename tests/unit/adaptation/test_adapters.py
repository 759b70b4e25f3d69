"""Bottleneck adapters, and peft's operations on them."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel, get_peft_model
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import count

from headstart.adaptation.adapters import Adapters
from headstart.adaptation.bottleneck import BottleneckConfig
from headstart.adaptation.peft_base import head_modules
from headstart.adaptation.targets import find, norms_in_layers

TRANSFORMERS = [layout for layout, family in LAYOUTS.items() if family != "bilm"]


def adapters(**settings) -> Adapters:
    return Adapters(Adapters.Config(**settings))


def disturb(model, name: str) -> None:
    """Change an adapter's weights, as training would."""
    torch.manual_seed(sum(map(ord, name)))
    for key, parameter in model.named_parameters():
        if f"bottleneck_up.{name}." in key:
            torch.nn.init.normal_(parameter, std=0.5)


@pytest.mark.parametrize("placement", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("layout", TRANSFORMERS)
def test_each_target_matrix_gets_a_bottleneck(placement, layout, pretrained, tmp_path):
    given = pretrained(layout)
    method = adapters(placement=placement)
    if (layout, placement) == ("xlnet", "houlsby"):
        assert "pfeiffer" in method.supports_kind(layout)
        return
    assert method.supports_kind(layout) is None
    plain = given.source.pretrained()
    head = head_modules(plain, given.source.new_parameters())
    blocks = len(find(plain, ["ffn_out"])) + (len(find(plain, ["attention_out"])) if placement == "houlsby" else 0)
    width = plain.config.hidden_size
    each = 2 * width * (width // 16) + width // 16 + width
    model = method.adapt(given.source)
    trained = [*head, *(norms_in_layers(plain) if placement == "houlsby" else [])]
    assert count(model) == blocks * each + sum(
        p.numel() for name in trained for p in plain.get_submodule(name).parameters()
    )
    assert torch.equal(given.outputs(model), given.outputs(plain)), "an adapter starts as the identity"
    trainable, changed = given.train(model)
    assert trainable == changed and all("bottleneck_" in name or "modules_to_save" in name for name in changed)
    method.finish(model).save_pretrained(str(tmp_path))
    again = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path))
    torch.testing.assert_close(given.outputs(again), given.outputs(model), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("layout", "body"), [
    ("bert", "bert.encoder.layer.1"), ("modernbert", "model.layers.1"), ("llama", "model.layers.1"),
    ("gpt2", "transformer.h.1"),
])  # fmt: skip
def test_pfeiffer_reads_the_sum_after_the_norm_and_is_added_before_it(layout, body, pretrained):
    """AdapterHub's `seq_bn`: original_ln_before, original_ln_after and residual_before_ln are true."""
    given = pretrained(layout)
    model = adapters().adapt(given.source)
    network = model.get_base_model().eval()
    wrapped = next(m for name, m in network.named_modules() if name.startswith(body) and hasattr(m, "bottleneck_up"))
    calls, outputs = [], []
    wrapped.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output)))
    network.get_submodule(body).register_forward_hook(lambda _, __, output: outputs.append(output))

    def last() -> torch.Tensor:
        output = outputs[-1]
        return output if isinstance(output, torch.Tensor) else output[0]

    with torch.no_grad(), model.disable_adapter():
        given.outputs(model)
    plain, summed = last(), calls[-1][0]
    disturb(model, "default")
    only_this(network, wrapped)
    given.outputs(model)
    with torch.no_grad():
        if isinstance(wrapped.base_layer, torch.nn.LayerNorm):  # post-norm: the norm itself is wrapped
            expected = wrapped.base_layer(summed + adapter(wrapped, wrapped.base_layer(summed)))
        else:
            expected = plain + adapter(wrapped, plain)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(last(), expected, atol=1e-5, rtol=1e-4)


def only_this(network, wrapped) -> None:
    """Reset all other adapters to the identity."""
    for module in network.modules():
        if hasattr(module, "bottleneck_up") and module is not wrapped:
            for parameter in module.bottleneck_up.parameters():
                torch.nn.init.zeros_(parameter)


def adapter(wrapped, states: torch.Tensor) -> torch.Tensor:
    return wrapped.bottleneck_up["default"](wrapped.bottleneck_down["default"](states).relu())


def test_houlsby_trains_the_layer_norms_and_uses_swish(pretrained):
    given = pretrained("bert")
    model = adapters(placement="houlsby").adapt(given.source)
    norms = {name for name, p in model.named_parameters() if p.requires_grad and "LayerNorm" in name}
    assert len(norms) == 2 * 2 * model.config.num_hidden_layers and not any("embeddings" in name for name in norms)
    assert model.active_peft_config.activation == "silu"


def test_a_saved_config_of_an_earlier_version_reads_the_matrix(pretrained, tmp_path):
    given = pretrained("bert")
    target = "bert.encoder.layer.1.output.dense"
    config = BottleneckConfig(target_modules=[target], modules_to_save=["classifier"])
    model = get_peft_model(given.source.pretrained(), config)
    disturb(model, "default")
    model.save_pretrained(str(tmp_path))
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    for key in ("reads", "residual_norms"):
        del saved[key]
    (tmp_path / "adapter_config.json").write_text(json.dumps(saved))
    again = adapters().reopen(given.source, tmp_path)
    torch.testing.assert_close(given.outputs(again), given.outputs(model), atol=1e-6, rtol=1e-5)


def test_peft_switches_stacks_disables_and_deletes_adapters(pretrained):
    given = pretrained("modernbert", "AutoModelForMaskedLM")
    plain = given.outputs(given.source.pretrained())
    config = {"target_modules": ["mlp.Wo"], "reduction": 8}
    model = get_peft_model(given.source.pretrained(), BottleneckConfig(**config), adapter_name="first")
    model.add_adapter("second", BottleneckConfig(**config, activation="gelu"))
    for name in ("first", "second"):
        disturb(model, name)
    first = given.outputs(model)
    assert {name for name, p in model.named_parameters() if p.requires_grad and "second" in name} == set()
    model.set_adapter("second")
    second = given.outputs(model)
    assert {name for name, p in model.named_parameters() if p.requires_grad and "first" in name} == set()
    model.base_model.set_adapter(["first", "second"])
    stacked = given.outputs(model)
    model.base_model.set_adapter(["second", "first"])
    reversed_stack = given.outputs(model)
    outputs = [plain, first, second, stacked, reversed_stack]
    assert all((one - other).abs().max() > 1e-3 for i, one in enumerate(outputs) for other in outputs[:i])
    with model.disable_adapter():
        assert torch.equal(given.outputs(model), plain)
    model.base_model.set_adapter(["first"])
    assert torch.equal(given.outputs(model), first)
    model.delete_adapter("second")
    assert torch.equal(given.outputs(model), first)
    assert torch.equal(given.outputs(model.unload()), plain)


def test_stacked_adapters_run_one_after_the_other(pretrained):
    given = pretrained("bert", "AutoModelForMaskedLM")
    target = "bert.encoder.layer.1.output.dense"
    config = {"target_modules": [target], "reduction": 8}
    model = get_peft_model(given.source.pretrained(), BottleneckConfig(**config), adapter_name="first")
    model.add_adapter("second", BottleneckConfig(**config))
    disturb(model, "first")
    disturb(model, "second")
    model.base_model.set_adapter(["first", "second"])
    layer = model.base_model.model.get_submodule(target).eval()
    states = torch.randn(2, layer.base_layer.in_features)
    with torch.no_grad():
        expected = layer.base_layer(states)
        for name in ("first", "second"):
            middle = layer.bottleneck_down[name](expected).relu()
            expected = expected + layer.bottleneck_up[name](middle)
        assert torch.equal(layer(states), expected)


def test_two_saved_adapters_load_into_one_model(pretrained, tmp_path):
    given = pretrained("bert")
    outputs = {}
    for name in ("one", "other"):
        method = adapters()
        model = method.adapt(given.source)
        disturb(model, "default")
        given.train(model, steps=1 + len(name))
        outputs[name] = given.outputs(model)
        method.finish(model).save_pretrained(str(tmp_path / name))
    model = PeftModel.from_pretrained(given.source.pretrained(), str(tmp_path / "one"), adapter_name="one")
    model.load_adapter(str(tmp_path / "other"), adapter_name="other")
    for name in ("other", "one"):
        model.set_adapter(name)
        torch.testing.assert_close(given.outputs(model), outputs[name], atol=1e-5, rtol=1e-4)
