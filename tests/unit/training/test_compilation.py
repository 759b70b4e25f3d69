"""Compiled layers give the same numbers as eager ones; T5's position bias is contiguous."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

from headstart.training.compilation import compile_layers

IDS = torch.arange(2 * 24).view(2, 24) % 40 + 1
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no C++ compiler was found; install g++ to run this"
)


def t5() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64, num_layers=2, d_model=32, num_heads=4, d_kv=8, d_ff=64, dropout_rate=0.0, pad_token_id=0,
        decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return T5ForConditionalGeneration(config).train()


def learn(model: T5ForConditionalGeneration) -> tuple[float, dict[str, torch.Tensor]]:
    loss = model(input_ids=IDS, labels=IDS[:, :9].contiguous(), use_cache=False).loss
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
def test_compiled_t5_has_the_loss_and_gradients_of_an_eager_one() -> None:
    compiled = t5()
    assert compile_layers(compiled) == 4 + 4 + 6
    (loss, gradients), (expected, plain) = learn(compiled), learn(t5())
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_the_bias_of_compiled_t5_is_contiguous() -> None:
    plain, compiled = t5(), t5()
    compile_layers(compiled)
    biases = [model.encoder.block[0].layer[0].SelfAttention.compute_bias(12, 12) for model in (plain, compiled)]
    assert torch.equal(*biases)
    assert [bias.is_contiguous() for bias in biases] == [False, True]


def test_a_copy_of_compiled_t5_has_its_own_table_and_is_saved_as_plain_t5(tmp_path: Path) -> None:
    compiled = t5()
    compile_layers(compiled)
    table = compiled.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        table.weight.add_(1.0)
    same = twin.encoder.block[0].layer[0].SelfAttention.compute_bias(6, 6)
    assert torch.equal(same, t5().encoder.block[0].layer[0].SelfAttention.compute_bias(6, 6))
    compiled.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is T5ForConditionalGeneration
    assert loaded.state_dict().keys() == t5().state_dict().keys()
    assert torch.equal(loaded.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight, table.weight)
