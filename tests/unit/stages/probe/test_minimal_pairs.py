"""Accuracy on minimal pairs: it follows the likelihoods, ties count a half, and every paradigm keeps its rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest

from headstart.core.errors import DataError
from headstart.stages.probe.likelihood import log_likelihoods
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes.minimal_pairs import MinimalPairs
from headstart.stages.probe.settings import ProbeSettings


def probe_of(path, **settings):
    probe = MinimalPairs(ProbeSettings(text=str(path), **settings))
    assert probe.prepare() is None
    return probe


def report_of(probe, network):
    found = probe.measure(network)
    return probe.report([Measured(network.name, network.family, found, found)])


@pytest.fixture(params=["encoder", "decoder"])
def network(request, network_of, encoder_folder, decoder_folder):
    return network_of(encoder_folder if request.param == "encoder" else decoder_folder)


@pytest.mark.parametrize("is_right", [True, False])
def test_the_likelier_sentence_is_taken_for_the_good_one(network, sentences, write_pairs, tmp_path, is_right):
    texts = dict(zip(sentences, log_likelihoods(network, sentences), strict=True))
    couples = [sorted(sentences[i : i + 2], key=texts.get, reverse=is_right) for i in range(0, 40, 2)]
    report = report_of(probe_of(write_pairs(tmp_path / "pairs.csv", couples)), network)
    (score,) = report.scores
    assert score.estimate.value == float(is_right)
    assert score.estimate.low < score.estimate.high, "an interval is not empty, even where all or none are right"
    assert report.numbers["pairs"] == 20


def test_sentences_of_the_same_tokens_are_ties_and_count_a_half(network, write_pairs, tmp_path):
    # Both tokenizers strip or keep spaces; the same text is a tie in any case.
    pairs = [("And he said", "And he said"), ("In the day", "In the day")]
    report = report_of(probe_of(write_pairs(tmp_path / "pairs.csv", pairs)), network)
    assert report.scores[0].estimate.value == 0.5
    assert report.numbers["models"][network.name]["ties"] == 2


def test_each_paradigm_has_as_many_pairs_as_the_limit_and_keeps_them_if_it_grows(write_pairs, tmp_path, verses):
    rows = [(verse[:20], verse[1:21], f"p{i % 3}") for i, verse in enumerate(verse for verse in verses if verse)]
    path = write_pairs(tmp_path / "pairs.csv", rows[:90], "uid")
    few, more, other = (probe_of(path, limit=limit, seed=seed).pairs for limit, seed in ((5, 0), (12, 0), (5, 1)))
    assert [pair.uid for pair in few] == ["p0"] * 5 + ["p1"] * 5 + ["p2"] * 5
    assert set(few) < set(more) and len(more) == 36 and set(few) != set(other)


def test_groups_have_their_own_accuracies(network_of, encoder_folder, sentences, write_pairs, tmp_path):
    network = network_of(encoder_folder)
    values = dict(zip(sentences, log_likelihoods(network, sentences), strict=True))
    rows = []
    for i in range(0, 40, 2):
        is_right = i < 20
        good, bad = sorted(sentences[i : i + 2], key=values.get, reverse=is_right)
        rows.append((good, bad, f"u{i % 4}", "known" if is_right else "unknown", "syntax"))
    report = report_of(probe_of(write_pairs(tmp_path / "pairs.csv", rows, "uid", "term", "field")), network)
    by_term = {row["phenomenon"]: row["accuracy"] for row in report.tables["minimal_pairs-phenomenon"]}
    assert by_term == {"known": 1.0, "unknown": 0.0}
    assert sum(row["points"] for row in report.tables["minimal_pairs"]) == 10


def test_a_pair_that_is_too_long_is_skipped_and_counted(network, sentences, write_pairs, tmp_path):
    couples = [(sentences[i], sentences[i + 1]) for i in range(0, 8, 2)]
    path = write_pairs(tmp_path / "pairs.csv", [*couples, ("in " * 5000, "a"), ("a", "in " * 5000)])
    report = report_of(probe_of(path), network)
    alone = report_of(probe_of(write_pairs(tmp_path / "short.csv", couples)), network)
    assert report.scores[0].estimate == alone.scores[0].estimate
    assert report.numbers["models"][network.name]["skipped"] == 2
    assert any("2 of the 6 pairs have a sentence that is too long" in note for note in report.sections[0].notes)
    assert len(report.tables["minimal_pairs"]) == 4
    with pytest.raises(DataError, match=r"no pair of .*long.csv fits .*takes at most"):
        report_of(probe_of(write_pairs(tmp_path / "long.csv", [("in " * 5000, "a")])), network)


def test_a_file_without_the_columns_is_refused(tmp_path):
    (tmp_path / "pairs.csv").write_text("good,worse\na,b\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no column 'bad'.*reads the columns good, bad and, where they exist, uid"):
        probe_of(tmp_path / "pairs.csv")
    pa.parquet.write_table(pa.table({"good": ["a", None], "bad": ["b", "c"]}), str(tmp_path / "empty.parquet"))
    with pytest.raises(DataError, match="row 2: 'good' is not a text"):
        probe_of(tmp_path / "empty.parquet")


def test_without_data_the_probe_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    assert "set HEADSTART_DATA" in MinimalPairs(ProbeSettings()).prepare()


def test_blimp_has_67_paradigms(data_folder, monkeypatch):
    monkeypatch.setenv("HEADSTART_DATA", str(data_folder))
    probe = MinimalPairs(ProbeSettings(limit=1))
    assert probe.prepare() is None
    assert len(probe.pairs) == 67 and probe.total == 67_000
