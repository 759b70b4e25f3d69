"""The module between a body and its head, in every layout, saved and loaded."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from tests.unit.adaptation.conftest import LAYOUTS

from headstart.adaptation.layers import layers_run
from headstart.adaptation.on_top import LayerMix, LayerSelection, Projection, apply_top, build_top
from headstart.adaptation.on_top_network import HEADS, OnTopConfig, wrap
from headstart.core import registry
from headstart.tasks.source import family_of

IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 11, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def states_of(model, **inputs):
    """The hidden states of all layers of the plain body, the embeddings first, and its output."""
    recorded = {}
    handle = model.base_model.register_forward_hook(
        lambda _, __, output: recorded.update(output=output), always_call=True
    )
    with torch.no_grad():
        model(**inputs, output_hidden_states=True)
    handle.remove()
    output = recorded["output"]
    return getattr(output, "hidden_states", None) or output.decoder_hidden_states, output[0]


def with_top(model, selection: LayerSelection, kind: str):
    return wrap(model, selection, build_top(kind, selection.last, model.config.hidden_size, 16), kind, 16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_network_returns_the_states_of_all_layers(layout, network):
    model = network(layout, num_labels=3).eval()
    every, last = states_of(model, input_ids=IDS[:1])
    assert len(every) == layers_run(model) + 1
    assert all(states.shape == (1, 5, model.config.hidden_size) for states in every)
    if "mix" not in dict(model.base_model.named_children()):
        torch.testing.assert_close(every[-1], last)


def test_layers_are_read_levels_from_top(network):
    model = network("bert", num_labels=3).eval()
    every, _ = states_of(model, input_ids=IDS, attention_mask=MASK)
    with torch.no_grad():
        output = model.base_model(IDS, MASK, output_hidden_states=True)
    assert torch.equal(LayerSelection()(output), output.last_hidden_state)
    assert torch.equal(LayerSelection(2)(output), torch.cat(every[1:], dim=-1))
    torch.testing.assert_close(LayerSelection(3, mean=True)(output), torch.stack(every).mean(0))
    scaled = LayerSelection(1, normalize=True)(output)
    torch.testing.assert_close(scaled.mean(-1), torch.zeros(IDS.shape), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.var(-1, unbiased=False), torch.ones(IDS.shape), atol=1e-3, rtol=0)


def test_the_mixture_is_that_of_elmo():
    """γ Σ softmax(w)ⱼ hⱼ, which starts as the plain mean."""
    layers = [torch.randn(2, 3, 4) for _ in range(3)]
    mix = LayerMix(3)
    torch.testing.assert_close(mix(torch.cat(layers, -1)), torch.stack(layers).mean(0))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 1.0, -2.0]))
        mix.scale.fill_(1.5)
    weights = torch.tensor([0.0, 1.0, -2.0]).softmax(0)
    expected = 1.5 * sum(weight * states for weight, states in zip(weights, layers, strict=True))
    torch.testing.assert_close(mix(torch.cat(layers, -1)), expected)
    torch.testing.assert_close(Projection(3, 4)(torch.cat(layers, -1)), torch.stack(layers).mean(0))


@pytest.mark.parametrize("layout", ["bert", "albert", "modernbert", "gpt2", "t5", "xlnet", "bilm"])
@pytest.mark.parametrize(
    ("selection", "kind"),
    [
        (LayerSelection(2), "mix"),
        (LayerSelection(2), "projection"),
        (LayerSelection(3, True), "none"),
        (LayerSelection(2), "mix+bilstm"),
        (LayerSelection(), "none+bilstm"),
    ],
)
def test_it_saves_and_loads_through_the_auto_class(layout, selection, kind, network, tmp_path):
    """transformers alone does not know the model type; `registry.import_network` registers it."""
    model = with_top(network(layout, num_labels=3), selection, kind)
    with torch.no_grad():
        for parameter in model.top.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model.eval()(input_ids=IDS[:1]).logits
    model.save_pretrained(str(tmp_path))
    registry.import_network(tmp_path)
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        str(tmp_path), output_loading_info=True
    )
    assert not any(info.values()), info
    assert loaded.config.id2label == model.config.id2label and len(loaded.config.id2label) == 3
    assert family_of(loaded.config) == LAYOUTS[layout]
    loaded.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(input_ids=IDS[:1]).logits, expected, atol=1e-5, rtol=1e-4)
    assert loaded.base_model.config.model_type == network(layout).config.model_type


@pytest.mark.parametrize("hidden", [4, 6], ids=["half", "projected"])
def test_an_lstm_reads_each_text_and_no_padding(hidden):
    """The states equal those of an LSTM that reads the text alone, with padding on the right or on the left."""
    torch.manual_seed(0)
    top = build_top("none+bilstm", 0, 8, hidden).eval()
    texts = [torch.randn(length, 8) for length in (5, 2, 3)]
    states, mask = 9 * torch.ones(3, 5, 8), torch.zeros(3, 5, dtype=torch.long)
    states[0], states[1, :2], states[2, 2:] = texts
    mask[0], mask[1, :2], mask[2, 2:] = 1, 1, 1
    with torch.no_grad():
        found = apply_top(top, states, mask)
        for row, text in enumerate(texts):
            alone = top.projection(top.lstm(text[None])[0])[0]
            torch.testing.assert_close(found[row][mask[row].bool()], alone, atol=1e-6, rtol=1e-5)
        assert (found[mask == 0] == 0).all()
        torch.testing.assert_close(apply_top(top, texts[0][None], None)[0], found[0])


@pytest.mark.parametrize("auto_class", HEADS)
def test_every_head_saves_and_loads(auto_class, network, tmp_path):
    model = with_top(network("bert", auto_class), LayerSelection(2), "mix").eval()
    ids = IDS[None] if "Choice" in auto_class else IDS
    with torch.no_grad():
        expected = model(input_ids=ids)[0]
    model.save_pretrained(str(tmp_path))
    loaded = getattr(transformers, auto_class).from_pretrained(str(tmp_path)).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids)[0], expected)


def test_a_copy_has_its_own_module(network):
    model = with_top(network("modernbert", num_labels=3), LayerSelection(2), "mix").eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = model(input_ids=IDS).logits
        other.top.scale.fill_(3.0)
        assert torch.equal(model(input_ids=IDS).logits, before)
        assert not torch.equal(other(input_ids=IDS).logits, before)


def test_an_unknown_module_is_rejected():
    assert OnTopConfig().model_type == "headstart_on_top"
    with pytest.raises(ValueError, match="unknown module"):
        build_top("tower", 1, 1)
