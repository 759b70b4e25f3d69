"""Integrated gradients: completeness, a classifier whose words are known, deletion, and nothing to explain."""

from __future__ import annotations

import json
import math

import pytest
import torch

import headstart
from headstart.core.errors import ResourceError
from headstart.stages.probe import gradients
from headstart.stages.probe.network import ProbedCheckpoint
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes.attribution import FRACTIONS, Attribution
from headstart.stages.probe.settings import ProbeSettings

TEXT = "and the king of Babylon went up unto the city with all his servants"


@pytest.fixture(params=["label", "labels", "number", "decoder", "masked token", "next token"])
def network(request, classifier_of, network_of, encoder_folder, decoder_folder):
    return network_of({
        "label": classifier_of,
        "labels": lambda: classifier_of(problem_type="multi_label_classification"),
        "number": lambda: classifier_of(num_labels=1),
        "decoder": lambda: classifier_of("decoder"),
        "masked token": lambda: encoder_folder,
        "next token": lambda: decoder_folder,
    }[request.param]())  # fmt: skip


def test_attributions_sum_to_the_change_of_the_prediction(network):
    """Completeness to 1 %; both ends again, by one call of the model for each."""
    text = TEXT if network.outputs else TEXT.replace("city", "___")
    prediction = gradients.prediction_of(network, text)
    found = gradients.attribute(network, prediction)
    assert found.error <= 0.01
    everything = range(len(prediction.words))
    ends = []
    for ids in (prediction.ids, gradients.without_words(network, prediction, everything)):
        with torch.no_grad():
            logits = network.model(input_ids=torch.tensor([ids])).logits[0]
        logits = logits if network.outputs else logits[prediction.position]
        if network.outputs and network.outputs.kind != "label":
            ends.append(float(logits[found.target]))
        else:
            probability = float(logits.double().softmax(-1)[found.target])
            ends.append(math.log(probability / (1 - probability)))
    assert [found.value, found.baseline] == pytest.approx(ends, abs=1e-3)
    # Special tokens and the blank are the same at both ends, so words have all of the change.
    assert sum(found.words) == pytest.approx(ends[0] - ends[1], abs=0.011 * max(abs(ends[0] - ends[1]), 0.1))
    if not network.outputs and network.family == "encoder":
        blank = prediction.words.index("___")
        assert prediction.tokens[blank] == [] and found.words[blank] == 0


def linear_in_one_word(network, word):
    """Replace the network's function by one that reads the embedding of one word alone."""
    token = network.encode(word)[0]
    table = network.model.get_input_embeddings()

    def forward(input_ids, attention_mask):
        states = table(input_ids)
        direction = table.weight[token].detach() / table.weight[token].detach().norm()
        present = (states @ direction).max(-1).values
        logits = torch.stack([present * 10, torch.zeros_like(present)], -1)
        return type("Output", (), {"logits": logits})()

    network.model.forward = forward
    return network


def test_the_word_that_decides_has_the_attribution_and_its_deletion_the_drop(network_of, classifier_of):
    network = linear_in_one_word(network_of(classifier_of(num_labels=2)), "king")
    prediction = gradients.prediction_of(network, TEXT)
    found = gradients.attribute(network, prediction)
    assert max(range(len(found.words)), key=lambda i: found.words[i]) == prediction.words.index("king")
    order = sorted(range(len(found.words)), key=lambda i: -found.words[i])
    top, last = gradients.drops(network, prediction, found.target, [order, order[::-1]], [0.1])
    assert top[0] > last[0]


def test_the_whole_probe_on_a_classifier_and_a_language_model(classifier_of, decoder_folder, tmp_path):
    lines = [TEXT, "the <b>king</b> answered and said", "in the beginning God created the heaven", "long " * 5000]
    (tmp_path / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    models = [classifier_of(), decoder_folder]
    settings = {"probes": ["attribution"], "text": tmp_path / "texts.txt", "quiet": True}
    run = headstart.probe(*models, output=tmp_path / "out", **settings)
    assert [row["model"] for row in run.scores] == [str(model) for model in models]
    for row in run.scores:
        assert row["low"] <= row["value"] <= row["high"] and row["untrained"] is not None
    numbers = run.numbers["probes"]["attribution"]["models"][str(models[0])]
    assert (numbers["texts"], numbers["skipped"], numbers["completeness"]["beyond"]) == (3, 1, 0)
    words = [row for row in run.table("attribution") if row["model"] == str(models[0]) and row["index"] == 0]
    assert [row["word"] for row in words] == TEXT.split()
    curve = run.table("attribution-deletion")
    assert len(curve) == 2 * 2 * 2 * len(FRACTIONS)
    page = run.page.read_text(encoding="utf-8")
    assert "&lt;b&gt;king&lt;/b&gt;" in page and "<b>king" not in page and "1 of 4 texts were left out" in page
    again = headstart.probe(*models, output=tmp_path / "again", **settings)
    assert again.manifest["files"] == run.manifest["files"]


def test_random_deletion_gives_no_lead_to_random_attributions(network_of, classifier_of, tmp_path, monkeypatch, verses):
    """If the order of attributions is random, the interval of the lead contains zero."""
    texts = [verse for verse in verses if 8 <= len(verse.split()) <= 30][:30]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    real, generator = gradients.attribute, torch.Generator().manual_seed(0)

    def shuffled(network, prediction):
        found = real(network, prediction)
        order = torch.randperm(len(found.words), generator=generator).tolist()
        return gradients.Attribution(
            found.target, found.value, found.baseline, [found.words[i] for i in order], found.error, found.steps
        )

    network = network_of(classifier_of())
    leads = {}
    for name, function in (("real", real), ("shuffled", shuffled)):
        monkeypatch.setattr(gradients, "attribute", function)
        probe = Attribution(ProbeSettings(text=str(tmp_path / "texts.txt")))
        assert probe.prepare() is None and probe.reason_against(network) is None
        found = probe.measure(network)
        leads[name] = probe.report([Measured("m", "encoder", found, found)]).scores[0].estimate
    assert leads["shuffled"].low < 0 < leads["shuffled"].high
    assert leads["real"].low > 0 and leads["real"].value > leads["shuffled"].value


def test_where_there_is_nothing_to_explain_the_reason_is_given(
    encoder_folder, classifier_of, network_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    probe = Attribution(ProbeSettings())
    assert probe.prepare() is None
    assert "there is no probes/facts.parquet" in probe.reason_against(network_of(encoder_folder))
    assert "pass texts as --text" in probe.reason_against(network_of(classifier_of()))
    (tmp_path / "texts.txt").write_text("no blank here\n", encoding="utf-8")
    probe = Attribution(ProbeSettings(text=str(tmp_path / "texts.txt")))
    assert probe.prepare() is None
    assert "has one blank (___)" in probe.reason_against(network_of(encoder_folder))
    headless = ProbedCheckpoint(str(encoder_folder), 0).untrained(has_head=False)
    assert "neither a classifier of texts nor a language-model head" in probe.reason_against(headless)

    def missing():
        raise ResourceError("captum is missing", do="pip install captum")

    monkeypatch.setattr(gradients, "load_captum", missing)
    assert "captum is missing" in probe.prepare()


def test_a_finetuned_model_is_explained_on_its_test_rows(tmp_path, encoder_folder, verses, monkeypatch):
    import csv

    monkeypatch.setenv("ROWS", str(tmp_path))
    texts = [verse for verse in verses if 5 < len(verse.split()) < 20][:60]
    for split, part in (("train", texts[:40]), ("test", texts[40:])):
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((t, "long" if len(t) > 70 else "short") for t in part)])
    recipe = {
        "output": str(tmp_path / "model"), "model": str(encoder_folder), "task": {"kind": "classify"},
        "data": {"train": "${ROWS}/train.csv", "validation": 0.2, "test": "${ROWS}/test.csv"},
        "adaptation": {"name": "full"},
        "training": {"budget": "2 steps", "batch_size": 4, "max_length": 64}, "compare_with": [],
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    model = headstart.finetune(tmp_path / "recipe.yaml")
    run = headstart.probe(model.path, probes=["attribution"], output=tmp_path / "out", limit=3, quiet=True)
    assert {row["text"] for row in run.table("attribution")} < set(texts[40:])
    assert {row["prediction"] for row in run.table("attribution")} <= {"long", "short"}
    page = (tmp_path / "out" / "probe.html").read_text(encoding="utf-8")
    assert "${ROWS}/test.csv" in page and str(tmp_path / "test.csv") not in page
