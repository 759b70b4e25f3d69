"""Forgetting: nothing changes between equal bodies, a changed body changes, and heads are borrowed."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import headstart
from headstart.core.errors import RecipeError
from headstart.evaluation.intervals import Estimate
from headstart.stages.probe.probe import Measured, ProbeScore
from headstart.stages.probe.probes import bias
from headstart.stages.probe.probes.bias import Bias
from headstart.stages.probe.probes.forgetting import Change, _independent
from headstart.stages.probe.settings import ProbeSettings


@pytest.fixture
def data(tmp_path, monkeypatch, sentences):
    """Pairs as the only data of the probes besides the templates of bias."""
    (tmp_path / "data" / "probes").mkdir(parents=True)
    pairs = pa.table({"good": sentences[:20], "bad": sentences[20:40]})
    pa.parquet.write_table(pairs, str(tmp_path / "data" / "probes" / "blimp.parquet"))
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path / "data"))


@pytest.fixture
def finetuned(encoder_folder, tmp_path):
    """A classifier on the body of the encoder, which is changed by noise."""

    def make(noise):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(str(encoder_folder), num_labels=2)
        with torch.no_grad():
            for parameter in model.base_model.parameters():
                parameter.add_(noise * torch.randn_like(parameter))
        folder = tmp_path / f"finetuned-{noise}"
        model.save_pretrained(str(folder))
        AutoTokenizer.from_pretrained(str(encoder_folder)).save_pretrained(str(folder))
        return folder

    return make


def test_a_classifier_is_measured_with_the_head_of_the_first_model(encoder_folder, finetuned, data, tmp_path):
    same, changed = finetuned(0.0), finetuned(1.0)
    run = headstart.probe(
        encoder_folder, same, changed, probes=["forgetting"], output=tmp_path / "out", limit=2, quiet=True
    )
    rows = run.table("forgetting")
    assert {row["probe"] for row in rows} == {"minimal_pairs", "bias"} and all(row["is_paired"] for row in rows)
    for row in rows:
        is_same = row["after"] == str(same)
        assert row["difference"] == pytest.approx(row["value_after"] - row["value_before"], abs=1e-9)
        if is_same:
            assert row["difference"] == pytest.approx(0.0, abs=1e-4)
    biases = [row["difference"] for row in rows if row["probe"] == "bias" and row["after"] == str(changed)]
    assert all(abs(value) > 1e-3 for value in biases)
    # The figure after is that of the masked language model with the changed body.
    model = AutoModelForMaskedLM.from_pretrained(str(encoder_folder))
    theirs = AutoModelForSequenceClassification.from_pretrained(str(changed)).base_model.state_dict()
    model.base_model.load_state_dict({k: v for k, v in theirs.items() if not k.startswith("pooler")})
    model.save_pretrained(str(tmp_path / "grafted"))
    AutoTokenizer.from_pretrained(str(encoder_folder)).save_pretrained(str(tmp_path / "grafted"))
    alone = headstart.probe(tmp_path / "grafted", probes=["bias"], output=tmp_path / "alone", limit=2, quiet=True)
    after = [row["value_after"] for row in rows if row["probe"] == "bias" and row["after"] == str(changed)]
    assert after == pytest.approx([row["value"] for row in alone.scores], abs=1e-4)
    page = run.page.read_text(encoding="utf-8")
    assert "Forgetting" in page and "Without a figure" not in page
    assert {row["model"] for row in run.scores} == {str(same), str(changed)}


def test_the_page_says_which_probes_were_left_out_and_that_rows_are_few(encoder_folder, finetuned, data, tmp_path):
    changed = finetuned(1.0)
    settings = {"probes": ["forgetting"], "quiet": True}
    few = headstart.probe(encoder_folder, changed, output=tmp_path / "few", limit=1, **settings)
    page = few.page.read_text(encoding="utf-8")
    assert "<p>attention: there is no tasks/ud-ewt-trees/test.parquet" in page
    assert "<p>minimal_pairs: " not in page and "<p>bias: " not in page
    warning = r"Figures over fewer than 10 rows are among those of ([^.]*)\. Intervals over so few are too narrow"
    assert set(re.search(warning, page)[1].split(" and ")) == {"minimal_pairs", "bias"}
    assert all(row["difference_low"] == row["difference_high"] for row in few.table("forgetting")), (
        "one row has no width"
    )


def test_a_difference_over_few_rows_is_known_by_its_rows_that_were_not_left_out():
    def change(before, after):
        scores = [ProbeScore("m", "x", Estimate(0.0), {}, points=points) for points in (before, after)]
        return Change("m", "bias", *scores, None)

    assert not change([0.0] * 10, [1.0] * 10).is_over_few
    assert change([math.nan, *[0.0] * 9], [1.0] * 10).is_over_few
    assert not change([], []).is_over_few, "not a mean over rows"


def test_the_interval_of_a_change_of_bias_is_over_names_and_templates():
    """A change that only depends on the template has been seen in three templates, not in eighteen comparisons."""
    probe = Bias(ProbeSettings())
    assert probe.prepare() is None
    templates = list(dict.fromkeys(comparison.template for comparison in probe.comparisons))
    by_template = [float(templates.index(comparison.template) % 3) for comparison in probe.comparisons]
    zeros, rising = (bias._Found(values, [], [], False) for values in ([0.0] * len(by_template), by_template))
    # A row that one of the models left out is in neither.
    zeros.values[0] = math.nan
    before, after = (probe.figures(Measured("m", "encoder", found, None)) for found in (zeros, rising))
    for number, (earlier, later) in enumerate(zip(before, after, strict=True)):
        found = Change("m", "bias", earlier, later, None).difference
        known = [value for value, at_zero in zip(later.points, earlier.points, strict=True) if not math.isnan(at_zero)]
        assert len(known) == len(later.points) - (number == 0) and found.value == pytest.approx(np.mean(known))
        assert found.high - found.low == pytest.approx(2, abs=0.1), "all resamples of three templates, 0 to 2"
    assert len(before) == 5


def test_another_tokenizer_or_network_is_refused_with_the_reason(encoder_folder, decoder_folder, data, tmp_path):
    run = headstart.probe(
        encoder_folder, decoder_folder, probes=["forgetting"], output=tmp_path / "out", limit=1, quiet=True
    )
    assert "its tokenizer is not that of" in run.summary()
    page = run.page.read_text(encoding="utf-8")
    assert "No later model shares a figure" in page and "that both models have: minimal_pairs, bias" in page


def test_one_model_is_refused_and_forgetting_runs_only_by_name(encoder_folder, decoder_folder, data, tmp_path):
    with pytest.raises(RecipeError, match=r"1 model is given.*headstart probe BEFORE AFTER forgetting"):
        headstart.probe(encoder_folder, probes=["forgetting"])
    with pytest.raises(RecipeError, match="--text is set for forgetting"):
        headstart.probe(encoder_folder, decoder_folder, probes=["forgetting"], text="x.csv")
    run = headstart.probe(encoder_folder, output=tmp_path / "out", limit=1, quiet=True)
    assert "forgetting" not in run.numbers["probes"] and "minimal_pairs" in run.numbers["probes"]


def test_a_difference_of_independent_figures_adds_their_variances():
    rng = np.random.default_rng(0)
    before, after = (Estimate(m, m - 1.96 * s, m + 1.96 * s) for m, s in ((0.5, 0.03), (0.4, 0.04)))
    found = _independent(before, after)
    drawn = rng.normal(0.4, 0.04, 100_000) - rng.normal(0.5, 0.03, 100_000)
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=2e-3)
    assert _independent(Estimate(0.5), after).low is None
