"""Attention: hand-made maps with known answers, maps of real networks, and shares counted a second time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import headstart
from headstart.core.errors import DataError
from headstart.evaluation.intervals import wilson
from headstart.stages.probe.attention_maps import (
    HEAD_MEASURES,
    WordTokens,
    attention_maps,
    head_measures,
    most_attended,
    over_words,
    tokenize_words,
)
from headstart.stages.probe.heads.relations import Edges, score_relations
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes import attention
from headstart.stages.probe.probes.attention import Attention
from headstart.stages.probe.settings import ProbeSettings

WORDS = ["and", "the", "king", "went", "up", "unto", "the", "city", "with", "him"]


def copying(words, offset, tokens_per_word=1):
    """A map of [CLS], words and [SEP] in which each word attends to the word at an offset, else to [CLS]."""
    length = 2 + words * tokens_per_word
    maps = np.zeros((1, 1, length, length))
    positions = [[1 + word * tokens_per_word + k for k in range(tokens_per_word)] for word in range(words)]
    for word, tokens in enumerate(positions):
        targets = positions[word + offset] if 0 <= word + offset < words else [0]
        for token in tokens:
            maps[0, 0, token, targets] = 1 / len(targets)
    maps[0, 0, [0, -1], 0] = 1.0
    return maps, positions


@pytest.mark.parametrize("tokens_per_word", [1, 3])
def test_a_head_that_copies_the_previous_word_scores_100_at_offset_minus_1(tokens_per_word):
    maps, words = copying(8, -1, tokens_per_word)
    measures = dict(zip(HEAD_MEASURES, head_measures(maps, words)[0, 0], strict=True))
    assert measures["top_previous"] == 1.0 and measures["top_next"] == 0.0
    assert (most_attended(over_words(maps, words))[0, 0, 1:] == np.arange(7)).all()
    assert measures["first"] == pytest.approx(1 / 8), "the first word has no previous one and attends to [CLS]"
    assert measures["entropy"] == pytest.approx(np.log(tokens_per_word) * 7 / 8)
    if tokens_per_word == 1:
        assert measures["previous"] == 1.0 and measures["next"] == measures["self"] == measures["last"] == 0.0


def test_attention_over_words_is_summed_over_targets_and_averaged_over_sources():
    maps = np.random.default_rng(0).dirichlet(np.ones(6), size=(2, 3, 6))
    merged = over_words(maps, [[1], [2, 3], [4]])
    assert merged[1, 2, 1, 0] == pytest.approx(maps[1, 2, 2:4, 1].mean())
    assert merged[1, 2, 0, 1] == pytest.approx(maps[1, 2, 1, 2:4].sum())


@pytest.fixture(params=["bert", "modernbert", "deberta-v2", "albert", "decoder"])
def network(request, network_of, checkpoint, decoder_folder):
    return network_of(decoder_folder if request.param == "decoder" else checkpoint(request.param))


def test_maps_and_shares_are_those_of_the_network(network):
    """The shares again, by a script of its own, from one call of the model for each sentence."""
    sentences = [tokenize_words(network, words) for words in (WORDS, ["Nebuchadnezzar", "worshipped", "him", "."])]
    assert len(sentences[1].words[0]) > 1
    for index, maps in attention_maps(network, sentences):
        sentence = sentences[index]
        with torch.no_grad():
            output = network.model(input_ids=torch.tensor([sentence.ids]), output_attentions=True)
        expected = torch.stack(output.attentions, 1)[0].double().numpy()
        assert maps == pytest.approx(expected, abs=1e-5) and maps.sum(-1) == pytest.approx(1.0, abs=1e-5)
        inner = [position for word in sentence.words for position in word]
        last = len(sentence.ids) - 1
        counted = {
            "first": np.mean([expected[0, 1, i, 0] for i in inner]),
            "last": np.mean([expected[0, 1, i, last] for i in inner]),
            "previous": np.mean([expected[0, 1, i, i - 1] if i else 0.0 for i in inner]),
            "next": np.mean([expected[0, 1, i, i + 1] if i < last else 0.0 for i in inner]),
            "self": np.mean([expected[0, 1, i, i] for i in inner]),
        }
        found = dict(zip(HEAD_MEASURES, head_measures(maps, sentence.words)[0, 1], strict=True))
        assert {name: found[name] for name in counted} == pytest.approx(counted, abs=1e-5)


def test_every_token_belongs_to_a_word(network):
    words = ["In", "the", "beginning", ",", "Nebuchadnezzar", "'s", "é", "3.14", "king", "."]
    sentence = tokenize_words(network, words)
    positions = [position for word in sentence.words for position in word]
    assert positions == sorted(positions) and len(set(positions)) == len(positions)
    assert len(positions) >= len(words) and all(sentence.words)
    assert network.tokenizer.decode([sentence.ids[i] for i in sentence.words[8]]).strip() == "king"


def trees(count, words=6):
    """Sentences in which each word depends on the previous one (`left`), and the first is the root."""
    return pa.table({
        "tokens": [[f"w{i}" for i in range(words)]] * count,
        "heads": [list(range(words))] * count,
        "relations": [["root", *["left"] * (words - 1)]] * count,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "family", "accuracy"), [(-1, "encoder", 1.0), (1, "encoder", 1.0), (-2, "encoder", 0.0)]
)
def test_a_relation_is_found_by_the_head_that_looks_there(
    offset, family, accuracy, network_of, encoder_folder, tmp_path, monkeypatch
):
    pa.parquet.write_table(trees(20), str(tmp_path / "trees.parquet"))
    probe = Attention(ProbeSettings(text=str(tmp_path / "trees.parquet")))
    assert probe.prepare() is None
    maps, _ = copying(6, offset)
    monkeypatch.setattr(attention, "attention_maps", lambda _, sentences: ((i, maps) for i in range(len(sentences))))
    monkeypatch.setattr(
        attention, "tokenize_words", lambda _, words: WordTokens([5] * 8, [[i + 1] for i in range(len(words))])
    )
    found = probe.measure(network_of(encoder_folder))
    report = probe.report([Measured("m", family, found, found)])
    (row,) = report.tables["attention-relations"]
    assert (row["relation"], row["edges"], row["accuracy"]) == ("left", 100, accuracy)
    assert (row["offset"], row["offset_accuracy"]) == (-1, 1.0) and row["lead"] == accuracy - 1.0
    mean = report.scores[0].estimate
    assert mean.value == accuracy and mean.low is not None and mean.low <= mean.value <= mean.high
    if accuracy:
        assert row["head"] == f"layer 1, head 1, from {'dependent' if offset < 0 else 'head'}"


def test_intervals_over_sentences_are_those_of_resampled_sentences():
    """The intervals again, by resampling whole sentences; all edges of a sentence are found, or none."""
    rng = np.random.default_rng(0)
    sentences = [np.repeat(np.arange(60), 5), np.repeat(np.arange(40), 3)]
    points = [(rng.random(60) < share)[each] for share, each in zip((0.3, 0.8), sentences, strict=True)]
    # One head, which finds an edge from the dependent or not at all.
    edges = {
        f"r{i}": Edges(np.stack([hits, np.zeros_like(hits)], 1), np.ones(len(hits), dtype=int), each)
        for i, (hits, each) in enumerate(zip(points, sentences, strict=True))
    }
    found = score_relations(edges, 1, "encoder")
    drawn: list[list[float]] = []
    for _ in range(4000):
        counts = np.bincount(rng.integers(0, 60, 60), minlength=60)
        drawn.append([np.average(hits, weights=counts[each]) for hits, each in zip(points, sentences, strict=True)])
    intervals = np.quantile(drawn, [0.025, 0.975], axis=0).T
    for score, interval, hits in zip(found.scores, intervals, points, strict=True):
        assert score.accuracy.value == pytest.approx(hits.mean())
        assert [score.accuracy.low, score.accuracy.high] == pytest.approx(interval.tolist(), abs=0.03)
        assert score.lead.value == pytest.approx(hits.mean() - 1)
    assert found.mean.value == pytest.approx(np.mean([hits.mean() for hits in points]))
    expected = np.quantile(np.mean(drawn, axis=1), [0.025, 0.975]).tolist()
    assert [found.mean.low, found.mean.high] == pytest.approx(expected, abs=0.02)
    assert found.scores[0].accuracy.high - found.scores[0].accuracy.low > 1.5 * _width(wilson(points[0].sum(), 300))


def _width(estimate):
    return estimate.high - estimate.low


def test_the_page_draws_heads_and_shows_markup_as_text(encoder_folder, decoder_folder, tmp_path, monkeypatch, verses):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    (tmp_path / "lines.txt").write_text("the <b>king</b> went up\nand he said\n" + "to him\n" * 3, encoding="utf-8")
    run = headstart.probe(
        encoder_folder,
        decoder_folder,
        probes=["attention"],
        text=tmp_path / "lines.txt",
        output=tmp_path / "out",
        quiet=True,
    )
    page = run.page.read_text(encoding="utf-8")
    assert "&lt;b&gt;king&lt;/b&gt;" in page and "<b>king" not in page and "Jain &amp; Wallace" in page
    rows = run.table("attention-heads")
    assert {row["model"] for row in rows} == {str(encoder_folder), str(decoder_folder)}
    assert all(0 <= row["previous"] <= 1 and row["untrained_entropy"] >= 0 for row in rows)


def test_a_decoder_is_scored_from_the_later_word(network_of, decoder_folder, tmp_path, verses):
    words = [verse.split()[:6] for verse in verses if len(verse.split()) >= 6][:20]
    table = trees(20).set_column(0, "tokens", pa.array(words))
    pa.parquet.write_table(table, str(tmp_path / "trees.parquet"))
    probe = Attention(ProbeSettings(text=str(tmp_path / "trees.parquet")))
    assert probe.prepare() is None
    found = probe.measure(network_of(decoder_folder))
    (row,) = probe.report([Measured("m", "decoder", found, found)]).tables["attention-relations"]
    assert row["offset"] == -1 and row["offset_accuracy"] == 1.0 and "from" not in row["head"]
    assert row["accuracy"] > 0.2, "a second word sees one word before it"


def test_a_broken_treebank_is_refused(tmp_path):
    table = trees(3).set_column(1, "heads", pa.array([[0, 1, 2, 3, 4, 9]] * 3))
    pa.parquet.write_table(table, str(tmp_path / "trees.parquet"))
    with pytest.raises(DataError, match=r"row 1: 6 tokens.*Each token has a head"):
        Attention(ProbeSettings(text=str(tmp_path / "trees.parquet"))).prepare()
