"""`headstart.probe`: the folder, the page, and where a probe has no meaning."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.runs.result import ProbeRun

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def pairs(write_pairs, tmp_path, sentences):
    rows = [
        (f"{a} {HOSTILE}", b, HOSTILE if i % 2 else "p", HOSTILE)
        for i, (a, b) in enumerate(itertools.pairwise(sentences))
    ]
    return write_pairs(tmp_path / "pairs.csv", rows, "uid", "term")


@pytest.fixture
def probed(encoder_folder, decoder_folder, pairs, tmp_path) -> ProbeRun:
    return headstart.probe(
        encoder_folder,
        decoder_folder,
        probes=["minimal_pairs"],
        text=pairs,
        output=tmp_path / "out",
        limit=5,
        quiet=True,
    )


def test_several_models_are_beside_each_other(probed, encoder_folder, decoder_folder):
    artifact.verify(probed.path)
    names = [str(encoder_folder), str(decoder_folder)]
    assert [row["model"] for row in probed.scores] == names
    for row in probed.scores:
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1 and 0 <= row["untrained"] <= 1
    assert probed.numbers["probes"]["minimal_pairs"]["models"].keys() == set(names)
    assert probed.numbers == json.loads((probed / "probe.json").read_text(encoding="utf-8"))
    assert len(probed.table("minimal_pairs")) == 2 * 10
    assert probed.recipe["limit"] == 5 and probed.cost.seconds > 0
    assert str(probed.page) in probed.summary() and "accuracy" in repr(probed)
    with pytest.raises(ArtifactError, match="Its tables: minimal_pairs, minimal_pairs-paradigm"):
        probed.table("other")


def test_the_section_for_the_card_has_every_main_figure_and_shows_markup_as_text(probed):
    lines = (probed / "card.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and "minimal" in line]
    assert len(rows) == len(probed.scores) == 2
    for line, row in zip(rows, probed.scores, strict=True):
        assert f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})" in line
        assert f"untrained {100 * row['untrained']:.1f}" in line
    assert not any(HOSTILE in line for line in lines)


def test_the_page_needs_no_other_file_and_shows_markup_as_text(probed):
    page = probed.page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page and "prefers-color-scheme: dark" in page
    assert not re.search(r"<script|<img|<link|@import|url\(|https?://|src=(?!x onerror)", page)


def test_the_same_settings_give_the_same_files(probed, encoder_folder, decoder_folder, pairs, tmp_path):
    again = headstart.probe(
        encoder_folder,
        decoder_folder,
        probes=["minimal_pairs"],
        text=pairs,
        output=tmp_path / "again",
        limit=5,
        quiet=True,
    )
    assert again.manifest["files"] == probed.manifest["files"]


def test_the_untrained_network_has_other_weights(encoder_folder, network_of):
    from headstart.stages.probe.network import ProbedCheckpoint

    checkpoint = ProbedCheckpoint(str(encoder_folder), seed=0)
    trained, untrained, again = checkpoint.trained(), checkpoint.untrained(True), checkpoint.untrained(True)
    weights = [network.model.get_input_embeddings().weight for network in (trained, untrained, again)]
    assert not torch.equal(weights[0], weights[1]) and torch.equal(weights[1], weights[2])
    assert trained.has_head and trained.model.config._attn_implementation == "eager"


def test_an_output_is_replaced_only_on_request(probed, encoder_folder, pairs):
    arguments = {"probes": ["minimal_pairs"], "text": pairs, "output": probed.path, "limit": 2, "quiet": True}
    with pytest.raises(ArtifactError, match=r"exists already.*--overwrite"):
        headstart.probe(encoder_folder, **arguments)
    assert len(headstart.probe(encoder_folder, **arguments, overwrite=True).scores) == 1
    with pytest.raises(ArtifactError, match="is also the model"):
        headstart.probe(encoder_folder, **arguments | {"output": encoder_folder})


def test_a_model_without_the_head_is_left_out_with_the_reason(encoder_folder, decoder_folder, pairs, tmp_path):
    from transformers import AutoTokenizer

    classifier = tmp_path / "classifier"
    AutoModelForSequenceClassification.from_pretrained(str(encoder_folder)).save_pretrained(str(classifier))
    AutoTokenizer.from_pretrained(str(encoder_folder)).save_pretrained(str(classifier))
    settings = {"probes": ["minimal_pairs"], "text": pairs, "limit": 2, "quiet": True}
    run = headstart.probe(classifier, decoder_folder, output=tmp_path / "both", **settings)
    assert [row["model"] for row in run.scores] == [str(decoder_folder)]
    assert "the checkpoint has no language-model head" in run.summary()
    assert "the checkpoint has no language-model head" in run.page.read_text(encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"no probe applies to .*no language-model head"):
        headstart.probe(classifier, output=tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()


def test_wrong_arguments_are_refused(encoder_folder, pairs):
    with pytest.raises(RecipeError, match=r"no model is given"):
        headstart.probe()
    with pytest.raises(RecipeError, match="given twice"):
        headstart.probe(encoder_folder, encoder_folder)
    with pytest.raises(RecipeError, match=r"no probes are named.*Name the probe that reads it"):
        headstart.probe(encoder_folder, text=pairs)
    with pytest.raises(RecipeError, match="did you mean 'minimal_pairs'"):
        headstart.probe(encoder_folder, probes=["minimal_pair"])
