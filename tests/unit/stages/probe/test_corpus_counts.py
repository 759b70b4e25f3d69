"""Counts of words in a training corpus against regular expressions over the same text, and facts by frequency."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy.stats import spearmanr

import headstart
from headstart.stages.probe.corpus_counts import count_phrases
from headstart.stages.probe.fact_frequency import CountedFact, correlation, tables

PAIRS = [("Abraham", "Sarah"), ("the LORD God", "heaven"), ("Isaac", "Mexico City"), ("he", "him"), ("...", "him")]


def test_phrases_are_counted_as_a_regular_expression_counts_them(verses):
    documents = [" ".join(verses[i : i + 20]) for i in range(0, len(verses), 20)]
    found = count_phrases(documents, PAIRS)
    text = "\n".join(documents).lower()
    for phrase in {phrase for pair in PAIRS[:4] for phrase in pair}:
        assert found.occurrences[phrase] == len(re.findall(rf"\b{phrase.lower()}\b", text)), phrase
    assert found.occurrences["Abraham"] > 10 and found.occurrences["the LORD God"] > 10
    assert found.occurrences["Mexico City"] == 0 and found.occurrences["..."] == 0
    both = [bool(re.search(r"\babraham\b", d.lower()) and re.search(r"\bsarah\b", d.lower())) for d in documents]
    assert found.together["Abraham", "Sarah"] == sum(both) > 0
    assert found.documents == len(documents) and found.is_complete


def test_the_correlation_is_positive_if_frequent_answers_are_ranked_higher():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5000, size=60).tolist()
    facts = [CountedFact(1, n, 0, max(1, 6000 - n + int(rng.integers(900))), int(rng.integers(5000))) for n in counts]
    found, untrained = correlation(facts, "answer"), correlation(facts, "answer", is_untrained=True)
    assert found.value == pytest.approx(-spearmanr(counts, [fact.rank for fact in facts]).statistic)
    assert found.low > 0.8 and untrained.low < 0 < untrained.high
    assert correlation(facts, "together").value is None, "all counts are equal"
    _, by_answer, _ = tables("m", facts)
    assert sum(int(row[1]) for row in by_answer.rows) == 60
    assert [row[0] for row in by_answer.rows][-1] == "1,000 to 9,999"


def test_facts_are_beside_their_frequency_in_the_corpus_of_the_run(pretrained, encoder_folder, tmp_path, monkeypatch):
    (tmp_path / "probes").mkdir()
    rows = {
        "relation": ["r"] * 3, "pattern": ["[X] said unto [Y] again"] * 3, "subject": ["Noah", "Abram", "Zzz"],
        "object": ["him", "them", "him"],
    }  # fmt: skip
    pa.parquet.write_table(pa.table(rows), str(tmp_path / "probes" / "facts.parquet"))
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    run = headstart.probe(pretrained, encoder_folder, probes=["cloze"], output=tmp_path / "out", quiet=True)
    text = (pretrained.parent / "text.txt").read_text(encoding="utf-8").lower()
    for row in run.table("cloze-facts"):
        if row["model"] == str(encoder_folder):
            assert row["answer_count"] is None
        else:
            assert row["answer_count"] == len(re.findall(rf"\b{row['answer']}\b", text))
            assert row["subject_count"] == len(re.findall(rf"\b{row['subject'].lower()}\b", text))
    page = run.page.read_text(encoding="utf-8")
    assert "Facts by frequency" in page
    assert f"{encoder_folder}: not counted, because it is not recorded which corpus" in page
    (pretrained.parent / "text.txt").rename(pretrained.parent / "moved.txt")
    try:
        again = headstart.probe(pretrained, probes=["cloze"], output=tmp_path / "again", quiet=True)
    finally:
        (pretrained.parent / "moved.txt").rename(pretrained.parent / "text.txt")
    assert "the corpus that it was pre-trained on cannot be read" in again.page.read_text(encoding="utf-8")
