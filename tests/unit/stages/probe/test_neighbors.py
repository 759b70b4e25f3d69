"""Nearest occurrences: marked words, a text with known neighbors, and whole runs."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import headstart
from headstart.core.errors import DataError
from headstart.stages.probe.hidden.corpus_text import (
    frequent_words,
    marked_word,
    read_sentences,
    select_sentences,
    snippet,
)
from headstart.stages.probe.hidden.word_senses import SenseCosines, read_sense_pairs, sense_cosines
from headstart.stages.probe.probe import Measured
from headstart.stages.probe.probes.neighbors import Neighbors
from headstart.stages.probe.settings import ProbeSettings


@pytest.fixture
def text(tmp_path, verses):
    path = tmp_path / "text.txt"
    lines = ["and the **king** went up", *(verse for verse in verses if verse)]
    path.write_text("\n".join(lines[:300]) + "\n<b>the king</b> & his men went up to the city.\n", encoding="utf-8")
    return path


def test_marked_words_are_read():
    found = marked_word("We saw a **play**, in the theatre.")
    assert found.words == ("We", "saw", "a", "play", ",", "in", "the", "theatre", ".") and found.position == 3
    assert found.word == "play" and found.text() == "We saw a **play** , in the theatre ."
    assert marked_word("no mark") is None and marked_word("**two words** here") is None
    assert marked_word("**two** marks **here**") is None
    assert snippet(["a"] * 5 + ["x"] + ["b"] * 5, 5, around=2) == "… a a **x** b b …"


def test_sentences_of_a_text(text, tmp_path):
    sentences, marked = read_sentences(text, has_marks=True)
    assert [query.word for query in marked] == ["king"] and all(4 <= len(words) <= 60 for words in sentences)
    assert "**" not in {word for words in sentences for word in words}
    assert frequent_words([["The", "the", "king", ".", "7"]], 5) == ["the", "king"]
    random, more = select_sentences(sentences, ["king"], 3, 20, seed=0)
    assert len(random) == 20 and not set(random) & set(more) and len(more) <= 3
    assert all("king" in map(str.lower, sentences[i]) for i in more)
    larger, _ = select_sentences(sentences, ["king"], 3, 40, seed=0)
    assert set(random) <= set(larger)
    (tmp_path / "short.txt").write_text("a **b** c\n", encoding="utf-8")
    with pytest.raises(DataError, match="no sentence of 4 to 60 words without a mark"):
        read_sentences(tmp_path / "short.txt", has_marks=True)
    path = tmp_path / "marks.txt"
    path.write_text("A sentence without any mark.\n\n  \nHe went to **New York** in the spring.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"marks\.txt, text 4: .*New York.* but not one marked word"):
        read_sentences(path, has_marks=True)
    assert len(read_sentences(path, has_marks=False)[0]) == 2


def test_the_same_sentence_is_the_nearest_and_layer_0_knows_words(network_of, encoder_folder, text):
    """A sentence of the text as the query: its own occurrence has the cosine 1 after every layer."""
    known = "In the beginning God created the heaven and the earth."
    with text.open("a", encoding="utf-8") as file:
        file.write(f"{known}\n{known.replace('God', '**God**')}\n")
    probe = Neighbors(ProbeSettings(text=str(text), limit=100))
    assert probe.prepare() is None
    found = probe.measure(network_of(encoder_folder))
    by_layer = found.occurrences[1]
    assert len(by_layer) == len(found.similarities)
    for occurrences in by_layer:
        cosines = [occurrence.cosine for occurrence in occurrences]
        assert cosines == sorted(cosines, reverse=True) and cosines[0] == pytest.approx(1.0, abs=1e-5)
        assert occurrences[0].word == "God"
    assert sum(occurrence.word.lower() == "god" for occurrence in by_layer[0]) >= 3, "embeddings of positions aside"
    report = probe.report([Measured("m", "encoder", found, found)])
    (score,) = report.scores
    assert score.estimate.value == pytest.approx(
        found.similarities[-1].self_similarity.value - found.similarities[-1].anisotropy.value
    )
    assert score.baselines["untrained"] == score.estimate.value


def test_similarities_are_those_of_a_second_count(network_of, decoder_folder, text):
    probe = Neighbors(ProbeSettings(text=str(text), limit=60))
    probe.prepare()
    from headstart.stages.probe.hidden.states import word_states

    network = network_of(decoder_folder)
    found, states = probe.measure(network), word_states(network, probe.sentences, "x")
    rows: dict[str, dict[int, int]] = {}
    for row, (sentence, position) in enumerate(states.keys()):
        word = probe.sentences[sentence][position]
        if sentence < probe.random and word[0].isalpha() and position > 0:
            rows.setdefault(word, {}).setdefault(sentence, row)
    last = states.values[-1].astype(np.float64)
    values = []
    for occurrences in (list(found.values()) for found in rows.values() if len(found) >= 5):
        units = last[occurrences] / np.linalg.norm(last[occurrences], axis=1, keepdims=True)
        cosines = units @ units.T
        values.append(cosines[np.triu_indices(len(cosines), 1)].mean())
    assert found.types == len(values) > 5
    assert found.similarities[-1].self_similarity.value == pytest.approx(np.mean(values), abs=1e-6)


def test_a_run_over_two_models(encoder_folder, decoder_folder, text, tmp_path):
    run = headstart.probe(
        encoder_folder, decoder_folder, probes=["neighbors"], text=text, output=tmp_path / "out", limit=50, quiet=True
    )
    rows = run.table("neighbors")
    assert {row["model"] for row in rows} == {str(encoder_folder), str(decoder_folder)}
    assert {row["is_trained"] for row in rows} == {True, False} and {row["word"] for row in rows} == {"king"}
    layers = run.table("neighbors-layers")
    assert {row["measure"] for row in layers} == {"anisotropy", "self_similarity", "intra_sentence"}
    assert all(-1 <= row["value"] <= 1 and row["low"] <= row["value"] <= row["high"] for row in layers)
    page = run.page.read_text(encoding="utf-8")
    assert "<b>the" not in page and "Ethayarajh 2019" in page and "50 random" in page
    headers = [re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table) for table in page.split("<table")[1:]]
    assert all(len(set(header)) == len(header) for header in headers), "each column has a name of its own"
    (similarity, _) = [header for header in headers if "anisotropy" in header]
    assert similarity[-3:] == [
        "untrained: anisotropy", "untrained: self-similarity − anisotropy", "untrained: intra-sentence − anisotropy",
    ]  # fmt: skip
    again = headstart.probe(
        encoder_folder, decoder_folder, probes=["neighbors"], text=text, output=tmp_path / "two", limit=50, quiet=True
    )
    assert again.manifest["files"] == run.manifest["files"]


def test_without_marks_the_default_words_are_searched(text):
    text.write_text("\n".join(text.read_text(encoding="utf-8").splitlines()[1:]), encoding="utf-8")
    probe = Neighbors(ProbeSettings(text=str(text)))
    assert probe.prepare() is None
    assert [query.word for query in probe.queries] == ["play", "play", "bank", "bank", "plant", "plant"]


def senses_of(folder, rows):
    (folder / "tasks" / "wic").mkdir(parents=True)
    path = folder / "tasks" / "wic" / "validation.parquet"
    names = ("sentence1", "sentence2", "indexes", "label")
    pa.parquet.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), str(path))
    return path


def test_senses_by_hand():
    cosines = np.array([[0.9, 0.8, 0.1, 0.8], [0.5, 0.5, 0.5, 0.5]])
    (_, first), (_, second) = SenseCosines([0, 4], cosines, np.array([True, True, False, False])).areas()
    assert first.value == pytest.approx(3.5 / 4), "of four comparisons three are won and one is a tie"
    assert second.value == 0.5 and first.low <= first.value <= first.high


def test_pairs_of_senses(network_of, encoder_folder, tmp_path):
    rows = [
        ("the king went up", "the king went up", "1-1", "T"),
        ("the king went up", "unto him the king said", "1-3", "F"),
        ("king " * 500, "the king went up", "0-1", "T"),
    ]
    path = senses_of(tmp_path, rows)
    pairs = read_sense_pairs(path, 10, 0)
    assert [pair.is_same for pair in pairs] == [True, False, True] and pairs[1].positions == (1, 3)
    found = sense_cosines(network_of(encoder_folder), pairs)
    assert found.is_same.tolist() == [True, False], "a pair with a sentence that does not fit is left out"
    assert found.cosines[:, 0] == pytest.approx(1.0) and (found.cosines[:, 1] < 1).all()
    for number, broken in enumerate([("a b", "b", "x-0", "T"), ("a b", "b", "2-0", "T")]):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(DataError, match="row 1: "):
            read_sense_pairs(senses_of(tmp_path / str(number), [broken]), 10, 0)


def test_the_default_data_has_senses_too(encoder_folder, tmp_path, verses, monkeypatch):
    rows = [(a, b, "0-0", "TF"[i % 2]) for i, (a, b) in enumerate(zip(verses[:20], verses[20:40], strict=True))]
    senses_of(tmp_path, [row for row in rows if row[0] and row[1]])
    (tmp_path / "corpora" / "wikipedia-en-2015").mkdir(parents=True)
    text = pa.table({"text": [verse for verse in verses if verse][:200]})
    pa.parquet.write_table(text, str(tmp_path / "corpora" / "wikipedia-en-2015" / "part-00.parquet"))
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    run = headstart.probe(encoder_folder, probes=["neighbors"], output=tmp_path / "out", limit=40, quiet=True)
    assert [row["measure"] for row in run.scores] == [
        "self-similarity − anisotropy, last layer",
        "WiC, area under the curve, last layer",
    ]
    assert {row["measure"] for row in run.table("neighbors-layers")} >= {"sense_area"}
    assert "Senses of words" in run.page.read_text(encoding="utf-8")
