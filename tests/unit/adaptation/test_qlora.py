"""QLoRA: four bits in the layers, full precision in the heads, and gradients that survive an evaluation."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import count

from headstart.adaptation.lora import Lora
from headstart.adaptation.qlora import QLora
from headstart.core.errors import ResourceError
from headstart.stages.finetune.cell import size
from headstart.training import checkpoint
from headstart.training.checkpoint import Progress

installed = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes: pip install 'headstart[quant]'"
)


def four_bits(model) -> set[str]:
    return {name for name, p in model.named_parameters() if type(p).__name__ == "Params4bit"}


@installed
@pytest.mark.parametrize("layout", ["bert", "modernbert", "albert", "gpt2", "llama", "t5", "bart", "xlnet"])
def test_matrices_of_layers_are_small_and_heads_are_not(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = Lora().adapt(given.source)
    method = QLora()
    model = method.adapt(given.source)
    assert count(model) == count(plain) and size(model) == size(plain)
    packed = four_bits(model)
    assert packed and all(name.endswith("base_layer.weight") for name in packed)
    assert all(p.dtype == torch.float32 for name, p in model.named_parameters() if name not in packed)
    could, did = given.train(model)
    assert could == did and not could & packed
    said = given.outputs(model)
    assert torch.equal(said, given.outputs(model))
    method.finish(model).save_pretrained(str(tmp_path))
    again = method.reopen(given.source, tmp_path)
    assert four_bits(again) == packed
    torch.testing.assert_close(given.outputs(again), said, atol=1e-5, rtol=1e-4)


@installed
def test_an_evaluation_changes_neither_weights_nor_gradients(pretrained):
    given = pretrained("modernbert")
    model = QLora().adapt(given.source)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        given.source.task.logits(model.train(), given.batch).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.requires_grad]

    before = gradients()
    given.outputs(model)
    assert all(torch.equal(one, other) for one, other in zip(before, gradients(), strict=True))
    lowest = next(
        name for name, p in model.named_parameters() if p.requires_grad and "layers.0" in name and "lora_B" in name
    )
    assert model.get_parameter(lowest).grad.abs().max() > 0


@installed
def test_a_stopped_run_goes_on_from_its_checkpoint(pretrained, tmp_path):
    given = pretrained("bert")
    model = QLora().adapt(given.source)
    given.train(model)
    said = given.outputs(model)
    checkpoint.save(tmp_path, model, _optimiser(model), Progress(step=3), {}, "run", keep=1)
    other = QLora().adapt(given.source)
    assert checkpoint.restore(tmp_path, other, _optimiser(other), "run") is not None
    assert torch.equal(given.outputs(other), said)


def _optimiser(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


def test_what_is_missing_is_named_with_the_command_that_brings_it(pretrained, monkeypatch):
    monkeypatch.setattr("headstart.adaptation.qlora._installed", lambda: False)
    given = pretrained("bert")
    assert "pip install 'headstart[quant]'" in QLora().supports(given.source.task, LAYOUTS["bert"])
    with pytest.raises(ResourceError, match=r"bitsandbytes.*pip install 'headstart\[quant\]'"):
        QLora().adapt(given.source)
