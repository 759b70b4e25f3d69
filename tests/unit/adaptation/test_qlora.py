"""QLoRA: four bits in the layers, full precision in the heads, and gradients after an evaluation."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tests.unit.adaptation.conftest import LAYOUTS
from tests.unit.adaptation.pretrained import count

from headstart.adaptation.lora import Lora
from headstart.adaptation.qlora import QLora
from headstart.core.errors import ResourceError
from headstart.stages.finetune.learner import count_parameters
from headstart.training.checkpoint import CheckpointStore, Progress, TrainState

installed = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes: pip install 'headstart[quant]'"
)


def four_bits(model) -> set[str]:
    return {name for name, p in model.named_parameters() if type(p).__name__ == "Params4bit"}


@installed
@pytest.mark.parametrize("layout", ["bert", "modernbert", "albert", "gpt2", "llama", "t5", "bart", "xlnet"])
def test_matrices_in_layers_are_quantized_and_heads_are_not(layout, pretrained, tmp_path):
    given = pretrained(layout)
    plain = Lora().adapt(given.source)
    method = QLora()
    model = method.adapt(given.source)
    assert count(model) == count(plain) and count_parameters(model) == count_parameters(plain)
    packed = four_bits(model)
    assert packed and all(name.endswith("base_layer.weight") for name in packed)
    assert all(p.dtype == torch.float32 for name, p in model.named_parameters() if name not in packed)
    trainable, changed = given.train(model)
    assert trainable == changed and not trainable & packed
    outputs = given.outputs(model)
    assert torch.equal(outputs, given.outputs(model)), "a second evaluation changes nothing"
    method.finish(model).save_pretrained(str(tmp_path))
    loaded = method.reopen(given.source, tmp_path)
    assert four_bits(loaded) == packed
    torch.testing.assert_close(given.outputs(loaded), outputs, atol=1e-5, rtol=1e-4)


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
def test_a_stopped_run_resumes_from_its_checkpoint(pretrained, tmp_path):
    given = pretrained("bert")
    model = QLora().adapt(given.source)
    given.train(model)
    outputs = given.outputs(model)
    store = CheckpointStore(tmp_path, "run")
    store.save(TrainState(model, _optimizer(model), Progress(step=3)))
    other = QLora().adapt(given.source)
    assert store.restore(other, _optimizer(other)) is not None
    assert torch.equal(given.outputs(other), outputs)


def _optimizer(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


def test_a_missing_bitsandbytes_is_reported_with_the_install_command(pretrained, monkeypatch):
    monkeypatch.setattr("headstart.adaptation.qlora._installed", lambda: False)
    given = pretrained("bert")
    assert "pip install 'bitsandbytes" in QLora().supports(given.source.task, LAYOUTS["bert"])
    with pytest.raises(ResourceError, match=r"bitsandbytes.*pip install 'bitsandbytes"):
        QLora().adapt(given.source)
