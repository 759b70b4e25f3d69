"""Heads switched off: the rise of the loss against a second network whose projection has zeros for that head."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import headstart
from headstart.stages.probe.attention_maps import tokenize_words
from headstart.stages.probe.heads import costs as head_costs
from headstart.stages.probe.heads.costs import HeadCosts, reason_against_costs
from headstart.stages.probe.network import ProbedCheckpoint

PROJECTIONS = {
    "bert": "encoder.layer.{}.attention.output.dense",
    "modernbert": "layers.{}.attn.Wo",
    "deberta-v2": "encoder.layer.{}.attention.output.dense",
    "albert": "encoder.albert_layer_groups.{}.albert_layers.0.attention.dense",
    "electra": "encoder.layer.{}.attention.output.dense",
    "decoder": "h.{}.attn.c_proj",
}


@pytest.fixture(params=PROJECTIONS)
def network(request, network_of, checkpoint, decoder_folder):
    network = network_of(decoder_folder if request.param == "decoder" else checkpoint(request.param))
    torch.manual_seed(2)
    with torch.no_grad():  # heads of a network without training hardly change its loss
        for parameter in network.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def without_head(network, layer, head):
    """A copy whose output projection ignores a head; layers with shared weights get weights of their own first."""
    model, kind = network.model, network.model.config.model_type
    if kind == "albert":
        config = copy.deepcopy(model.config)
        config.num_hidden_groups = config.num_hidden_layers
        own = type(model)(config).eval()
        weights = model.state_dict()
        for name in own.state_dict():
            shared = name if name in weights else name.replace("layer_groups.1", "layer_groups.0")
            own.state_dict()[name].copy_(weights[shared])
    else:
        own = copy.deepcopy(model)
    path = PROJECTIONS["decoder" if kind == "gpt2" else kind].format(layer)
    projection = own.base_model.get_submodule(path)
    width = model.config.hidden_size // model.config.num_attention_heads
    inputs = projection.weight if kind == "gpt2" else projection.weight.T  # (inputs, outputs)
    with torch.no_grad():
        inputs[head * width : (head + 1) * width] = 0
    return own


def loss_of(network, model, sentence, index):
    """The summed loss of one sentence by a call of the whole model."""
    ids = torch.tensor([sentence.ids])
    if network.family == "decoder":
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    positions = head_costs._predicted(network, sentence, 0, index)
    masked = ids.clone()
    masked[0, positions] = network.tokenizer.mask_token_id
    with torch.no_grad():
        logits = model(input_ids=masked).logits[0, positions]
    return float(torch.nn.functional.cross_entropy(logits, ids[0, positions], reduction="sum"))


def test_the_cost_of_a_head_is_the_loss_of_a_network_without_it(network, verses):
    texts = [verse.split()[: 4 + i % 5] for i, verse in enumerate(verse for verse in verses if verse)][:6]
    sentences = [tokenize_words(network, words) for words in texts]
    found = head_costs.head_costs(network, sentences, seed=0)
    config = network.model.config
    every = [(i, j) for i in range(config.num_hidden_layers) for j in range(config.num_attention_heads)]
    assert found.switched == every and found.rises.shape == (6, len(every))
    full = [loss_of(network, network.model, sentence, i) for i, sentence in enumerate(sentences)]
    assert found.loss == pytest.approx(sum(full) / found.predictions.sum(), abs=1e-5)
    for column, (layer, head) in enumerate(every):
        model = without_head(network, layer, head)
        again = [loss_of(network, model, sentence, i) for i, sentence in enumerate(sentences)]
        assert found.rises[:, column] == pytest.approx(np.subtract(again, full), abs=2e-4)
    assert np.abs(found.means()).max() > 0.01
    assert [loss_of(network, network.model, s, i) for i, s in enumerate(sentences)] == full, "all heads are back on"


def test_the_costliest_head_is_chosen_on_other_sentences():
    rises = np.array([[4.0, 0.0], [0.0, 2.0], [4.0, 0.0], [0.0, 2.0]])
    found = HeadCosts(1, 2, [(0, 0), (0, 1)], rises, np.full(4, 2.0), 3.0)
    assert found.means().tolist() == [1.0, 0.5] and found.cost(0).value == 1.0
    # The even sentences choose head 1 for the odd ones, where it costs nothing, and the other way round.
    assert found.costliest().value == 0.0


def test_a_large_network_switches_off_a_sample_of_its_heads(network_of, encoder_folder, verses, monkeypatch):
    network = network_of(encoder_folder)
    sentences = [tokenize_words(network, verse.split()[:6]) for verse in verses if verse][:20]
    monkeypatch.setattr(head_costs, "_TOKENS", (40, 80))
    layers, heads = network.model.config.num_hidden_layers, network.model.config.num_attention_heads
    few = head_costs.head_costs(network, sentences, seed=0)
    assert len(few.switched) == layers * heads and len(few.rises) < 20
    monkeypatch.setattr(head_costs, "_FLOPS", 1.0)
    assert len(head_costs.head_costs(network, sentences, seed=0).switched) == 1


def test_a_network_without_a_language_model_head_says_why(classifier_of, tmp_path, monkeypatch):
    folder = classifier_of()
    assert "no predictions" in reason_against_costs(ProbedCheckpoint(str(folder), 0).trained())
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    (tmp_path / "lines.txt").write_text("the king went up\nand he said unto him\n", encoding="utf-8")
    settings = {"probes": ["attention"], "text": tmp_path / "lines.txt", "quiet": True}
    run = headstart.probe(folder, output=tmp_path / "out", **settings)
    assert "Not measured: without a language-model head" in run.page.read_text(encoding="utf-8")
    assert not (run.path / "attention-costs.parquet").exists()


def test_the_page_and_the_tables_have_the_costs(encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    (tmp_path / "lines.txt").write_text("the king went up\nand he said unto him\n" * 3, encoding="utf-8")
    settings = {"probes": ["attention"], "text": tmp_path / "lines.txt", "quiet": True}
    run = headstart.probe(encoder_folder, output=tmp_path / "out", **settings)
    rows = run.table("attention-costs")
    numbers = run.numbers["probes"]["attention"]["models"][str(encoder_folder)]["switched_off"]
    assert len(rows) == numbers["heads"] and all(row["cost_low"] <= row["cost"] <= row["cost_high"] for row in rows)
    (score,) = run.scores
    assert score["measure"] == "costliest head switched off" and score["untrained"] is not None
    assert "The costliest heads" in run.page.read_text(encoding="utf-8")
