"""Default numbers of rows by the size of the models."""

from __future__ import annotations

import json

import pytest
import torch

import headstart
from headstart.stages.probe import run as probe_run
from headstart.stages.probe.network import ProbedCheckpoint
from headstart.stages.probe.probe import Probe
from headstart.stages.probe.settings import ProbeSettings


def test_the_parameters_are_counted_without_loading_them(encoder_folder, monkeypatch):
    checkpoint = ProbedCheckpoint(str(encoder_folder), seed=0)
    model = checkpoint.trained().model
    stored = {tensor.data_ptr(): tensor.numel() for tensor in model.parameters()}
    monkeypatch.setattr(torch, "empty", None)
    assert checkpoint.parameter_count == pytest.approx(sum(stored.values()), rel=0.01)


def test_a_large_model_gets_fewer_rows_unless_a_limit_is_set():
    probe, limited = Probe(ProbeSettings()), Probe(ProbeSettings(limit=300))
    assert probe.row_count(20) == 20
    probe.share = limited.share = 0.1
    assert (probe.row_count(200), probe.row_count(20, fewest=4), probe.row_count(3, fewest=4)) == (20, 4, 3)
    assert limited.row_count(20) == 300


def test_the_page_says_that_fewer_rows_were_read(encoder_folder, write_pairs, tmp_path, sentences, monkeypatch):
    pairs = write_pairs(tmp_path / "pairs.csv", [(text, text[::-1]) for text in sentences[:30]])
    monkeypatch.setattr(probe_run, "_FULL_SIZE", ProbedCheckpoint(str(encoder_folder), 0).parameter_count / 4)
    settings = {"probes": ["minimal_pairs"], "text": pairs, "quiet": True}
    few = headstart.probe(encoder_folder, output=tmp_path / "few", **settings)
    all_rows = headstart.probe(encoder_folder, output=tmp_path / "all", limit=30, **settings)
    counts = [
        json.loads((run.path / "probe.json").read_text())["probes"]["minimal_pairs"]["pairs"] for run in (few, all_rows)
    ]
    assert counts == [5, 30]
    assert "read about 25 % of their usual numbers of rows" in few.page.read_text(encoding="utf-8")
    assert "usual numbers of rows" not in all_rows.page.read_text(encoding="utf-8")
