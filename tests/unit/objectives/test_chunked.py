"""The chunked loss: value, gradients and accuracy equal those of full logits, without their memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Gemma2Config

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Vocabulary
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.chunked import TextObjective
from headstart.objectives.chunked_loss import chunked_loss
from headstart.training.module import LossModule

SIZE, ROWS, LENGTH = 997, 3, 24
NETWORKS = [
    *(("decoder", kind, {}) for kind in ("gpt2", "llama", "modernbert-decoder")),
    *(("encoder-decoder", kind, {"tie": tie}) for kind in ("t5", "bart") for tie in (False, True)),
]
IDS = ["-".join([kind, *(["tied"] if more.get("tie") else [])]) for _, kind, more in NETWORKS]


def build(family, kind, more):
    torch.manual_seed(0)
    known = Vocabulary(SIZE, 0, 2, 3, 4, special=np.arange(SIZE) < 5, starts_word=np.ones(SIZE, dtype=bool))
    if family == "decoder":
        backbone = Decoder(Decoder.Config(kind=kind, size="tiny", dropout=0.0))
        model = backbone.build(known, LENGTH, "AutoModelForCausalLM")
    else:
        backbone = EncoderDecoder(EncoderDecoder.Config(kind=kind, size="tiny", dropout=0.0, **more))
        model = backbone.build(known, LENGTH, "AutoModelForSeq2SeqLM")
    with torch.no_grad():  # zero biases could hide an error
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in name:
                tensor.normal_(0, 0.5)
    return model.train()


def synthetic_batch(model, rows=ROWS, length=LENGTH):
    labels = torch.randint(5, SIZE, (rows, length))
    inputs = torch.randint(5, SIZE, (rows, 2 * length)) if model.config.is_encoder_decoder else labels
    weights = (torch.rand(rows, length) < 0.8).float()
    weights[:, 0] = 0
    return {"input_ids": inputs, "labels": labels, "weights": weights}


def whole(model, batch):
    """Return the summed loss from the full logits of the transformers model, and the number of correct predictions."""
    labels = batch["labels"].masked_fill(batch["weights"] == 0, -100)
    if model.config.is_encoder_decoder:
        given = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        logits = model(input_ids=batch["input_ids"], decoder_input_ids=given, use_cache=False).logits
    else:
        logits, labels = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1], labels[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, int((logits.argmax(-1) == labels).sum())


class Chunks(TextObjective):
    """A minimal objective with a chunked loss."""

    def __init__(self, chunk):
        self.config = CausalLM.Config(chunk=chunk)


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    (loss / 7).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
@pytest.mark.parametrize("chunk", [1, 16, 10_000])
def test_loss_gradients_and_accuracy_equal_those_of_full_logits(network, chunk):
    model = build(*network)
    batch = synthetic_batch(model)
    expected, right = whole(model, batch)
    actual = Chunks(chunk).loss(model, batch)
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    with torch.no_grad():
        assert Chunks(chunk).loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
        assert Chunks(chunk).measure(model, batch) == pytest.approx(
            {"loss": expected.item(), "accuracy": right}, rel=1e-5
        )
    one, other = gradients(model, expected), gradients(model, actual)
    for name in one:  # the bias of keys does not affect attention, so its gradient is rounding noise
        scale = float(one[name].abs().max())
        assert torch.allclose(one[name], other[name], atol=1e-4 * scale + 1e-5, rtol=1e-4), name
    assert "forward" not in model.base_model.__dict__, "the model is restored"


def test_a_head_that_caps_its_logits_is_supported():
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=SIZE, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        intermediate_size=64, pad_token_id=0, final_logit_softcapping=0.5, attn_implementation="eager",
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    batch = synthetic_batch(model)
    expected, _ = whole(model, batch)
    actual = Chunks(7).loss(model, batch)
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    one, other = gradients(model, expected), gradients(model, actual)
    for name in one:
        scale = float(one[name].abs().max())
        assert torch.allclose(one[name], other[name], atol=1e-4 * scale + 1e-6, rtol=1e-4), name


@given(rows=st.integers(1, 4), length=st.integers(1, 9), chunk=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_any_shape_and_any_chunk(rows, length, chunk, seed):
    noise = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(8, 11)
    states = torch.randn(rows, length, 8, generator=noise, requires_grad=True)
    labels = torch.randint(0, 11, (rows, length), generator=noise)
    weights = torch.rand(rows, length, generator=noise)
    results = []
    for chunked in (True, False):
        if chunked:
            loss = chunked_loss(layer, states, labels, weights, chunk)
        else:
            losses = F.cross_entropy(layer(states).flatten(0, 1), labels.flatten(), reduction="none")
            loss = (losses * weights.flatten()).sum()
        results.append([loss, *torch.autograd.grad(3 * loss, [states, layer.weight, layer.bias])])
    assert all(torch.allclose(one, other, atol=1e-4, rtol=1e-4) for one, other in zip(*results, strict=True))


def test_a_frozen_head_or_a_frozen_body_gets_no_gradient():
    model = build("decoder", "modernbert-decoder", {})
    batch = synthetic_batch(model)
    for parameter in model.model.parameters():
        parameter.requires_grad_(False)
    Chunks(16).loss(model, batch).backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert with_gradient == {"lm_head.dense.weight", "lm_head.norm.weight", "decoder.bias"}
    model = build("decoder", "llama", {})
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
    Chunks(16).loss(model, batch).backward()
    assert model.lm_head.weight.grad is None
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0


class Largest(TorchDispatchMode):
    """Records the size of the largest new tensor with a vocabulary axis, ignoring shapes of parameters."""

    def __init__(self, model):
        super().__init__()
        self.known = {tuple(parameter.shape) for parameter in model.parameters()}
        self.known |= {shape[::-1] for shape in self.known}
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and SIZE in tensor.shape and tuple(tensor.shape) not in self.known:
                self.size = max(self.size, tensor.numel())
        return result


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_full_logits_are_never_in_memory(network):
    model = build(*network)
    batch, chunk = synthetic_batch(model), 16
    positions = ROWS * (LENGTH if model.config.is_encoder_decoder else LENGTH - 1)
    with Largest(model) as largest:
        Chunks(chunk).loss(model, batch).backward()
        Chunks(chunk).measure(model, batch)
    assert largest.size == chunk * SIZE
    with Largest(model) as largest:
        whole(model, batch)[0].backward()
    assert largest.size >= positions * SIZE, "the full loss has larger tensors"


def test_nothing_is_computed_twice():
    """The FLOPs of the head, forward and backward, equal those of the full loss."""
    model = build("decoder", "gpt2", {})
    batch = synthetic_batch(model, rows=8)
    counts = []
    for loss in (lambda: whole(model, batch)[0], lambda: Chunks(64).loss(model, batch)):
        with FlopCounterMode(display=False) as counter:
            loss().backward()
        counts.append(counter.get_total_flops())
    assert counts[1] == pytest.approx(counts[0], rel=0.05)
    assert LossModule(model, Chunks(64))(batch).requires_grad


def test_agrees_with_full_logits_under_autocast():
    model = build("decoder", "llama", {})
    batch = synthetic_batch(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = whole(model, batch)[0], Chunks(16).loss(model, batch)
    assert actual.item() == pytest.approx(expected.item(), rel=1e-3)
    one, other = gradients(model, expected), gradients(model, actual)
    for name in one:
        assert torch.nn.functional.cosine_similarity(one[name].flatten(), other[name].flatten(), dim=0) > 0.999, name
