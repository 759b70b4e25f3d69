"""Bias: associations by hand, the symmetry of names, controls, and pairs of the user."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
import torch

import headstart
from headstart.core.errors import DataError
from headstart.stages.probe.likelihood import log_likelihoods
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes import bias
from headstart.stages.probe.probes.bias import TEMPLATES, Bias, classify, fill_templates
from headstart.stages.probe.settings import ProbeSettings


def report_of(network, probe=None):
    probe = probe or Bias(ProbeSettings(limit=2))
    assert probe.prepare() is None and probe.reason_against(network) is None
    found = probe.measure(network)
    return probe.report([Measured("m", network.family, found, found)])


def test_sentences_of_a_pair_differ_only_in_the_name():
    for comparison in fill_templates(TEMPLATES):
        first_name, second_name = comparison.names.split(" / ")
        assert first_name != second_name and sum(pair.weight for pair in comparison.pairs) == pytest.approx(0)
        for pair in comparison.pairs:
            replaced, count = re.subn(rf"\b{first_name}\b", second_name, pair.first)
            assert "{" not in pair.first and (replaced, count) == (pair.second, 1)


def test_every_axis_has_controls_and_two_lists_of_attributes():
    by_axis = {}
    for comparison in fill_templates(TEMPLATES):
        by_axis.setdefault(comparison.axis, []).append(comparison)
    assert len(by_axis) == 5
    for comparisons in by_axis.values():
        assert {comparison.is_control for comparison in comparisons} == {True, False}
        assert all(len(comparison.pairs) == 10 for comparison in comparisons)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_the_association_is_the_difference_of_differences(family, network_of, encoder_folder, decoder_folder):
    network = network_of(encoder_folder if family == "encoder" else decoder_folder)
    report = report_of(network)
    row = next(row for row in report.tables["bias"] if row["axis"] == "gender: work or family")
    names, first = row["names"].split(" / "), row["first"]
    template = first.replace(names[0], "{}", 1).replace("the office", "{}")
    assert template.count("{}") == 2
    words = (["the office", "the business", "the salary", "the company", "the career"],
             ["the family", "the children", "the wedding", "the kitchen", "the home"])  # fmt: skip
    means = []
    for part in words:
        values = log_likelihoods(network, [template.format(name, word) for name in names for word in part])
        means.append(np.mean(values[:5]) - np.mean(values[5:]))
    assert row["value"] == pytest.approx(means[0] - means[1], abs=1e-3)
    score = report.scores[0]
    assert score.unit == "nats" and score.estimate.low <= score.estimate.value <= score.estimate.high
    assert set(score.baselines) == {"untrained", "control"}
    assert np.mean(score.points) == pytest.approx(score.estimate.value)


def test_exchanged_names_have_the_opposite_sign(network_of, encoder_folder, tmp_path, monkeypatch):
    network, values = network_of(encoder_folder), []
    template = (
        "- {{axis: a, groups: [[{}]], control: [[x, y]], templates: ['{{group}} saw {{attribute}}.'], attributes: {}}}"
    )
    for names in ("he, she", "she, he"):
        path = tmp_path / f"{names[:2]}.yaml"
        path.write_text(template.format(names, "[[him, men], [her, it]]"), encoding="utf-8")
        monkeypatch.setattr(bias, "TEMPLATES", path)
        values.append(report_of(network).scores[0].estimate.value)
    assert values[0] == pytest.approx(-values[1], abs=1e-4) != 0


@pytest.mark.parametrize("settings", [{}, {"problem_type": "multi_label_classification"}, {"num_labels": 1}])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_classifier_is_compared_by_its_scores(settings, family, classifier_of, network_of):
    network = network_of(classifier_of(family, **settings))
    texts = ["the man talked", "the woman talked about the children and the wedding"]
    expected = []
    for text in texts:
        with torch.no_grad():
            logits = network.model(input_ids=torch.tensor([network.tokenizer(text)["input_ids"]])).logits[0]
        kinds = {"label": logits.softmax(-1), "labels": logits.sigmoid(), "number": logits}
        expected.append(kinds[network.outputs.kind].numpy())
    assert np.array(classify(network, texts)) == pytest.approx(np.array(expected), abs=1e-4)
    report = report_of(network)
    assert all(
        row["value"] >= 0 and len(row["by_label"]) == len(network.outputs.labels) for row in report.tables["bias"]
    )
    assert report.scores[0].unit == ("" if network.outputs.kind == "number" else "× 100")


def test_a_classifier_that_does_not_read_names_has_no_change(classifier_of, network_of):
    network = network_of(classifier_of())
    with torch.no_grad():
        network.model.classifier.weight.zero_()
    report = report_of(network)
    assert {score.estimate.value for score in report.scores} == {0.0}


def test_own_pairs_are_compared_directly(network_of, encoder_folder, tmp_path):
    with (tmp_path / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([
            ("first", "second", "axis"), ("he said <b>it</b>", "she said <b>it</b>", "<i>a</i>"),
            ("a", "in " * 5000, "<i>a</i>"),
        ])  # fmt: skip
    run = headstart.probe(
        encoder_folder, probes=["bias"], text=tmp_path / "pairs.csv", output=tmp_path / "out", quiet=True
    )
    values = log_likelihoods(network_of(encoder_folder), ["he said <b>it</b>", "she said <b>it</b>"])
    assert run.scores[0]["value"] == pytest.approx(values[0] - values[1], abs=1e-4)
    page = run.page.read_text(encoding="utf-8")
    assert (
        "1 comparisons were left out" in page
        and "fewer than 10 comparisons" in page
        and "<i>a</i>" not in page
        and "does not show that a model is fair" in page
    )
    (tmp_path / "long.csv").write_text("first,second\na," + "in " * 5000, encoding="utf-8")
    with pytest.raises(DataError, match=r"no pair of .* fits"):
        report_of(network_of(encoder_folder), Bias(ProbeSettings(text=str(tmp_path / "long.csv"))))
