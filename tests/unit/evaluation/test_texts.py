"""BLEU and ROUGE: the libraries' own figures, with one right text or several, and on resamples."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from headstart.core import registry
from headstart.core.randomness import generator
from headstart.evaluation.resampling import resampled
from headstart.evaluation.texts import bleu, rouge1, rouge2, rougeL

METRICS = ("bleu", "rouge1", "rouge2", "rougeL")


def rows(verses: list[str], count: int = 60) -> tuple[list[str], list[str]]:
    """Verses as gold, and the same with words lost, doubled and swapped."""
    gold, found = [], []
    for number, verse in enumerate(verses[:count]):
        chance = generator(0, 0, number, "words")
        words = verse.split()
        kept = [word for word in words if chance.random() > 0.2] or words
        if number % 3 == 0:
            kept.reverse()
        gold.append(verse)
        found.append(" ".join(kept))
    return gold, found


def test_bleu_is_sacrebleus(verses):
    gold, found = rows(verses)
    assert bleu(gold, found) == pytest.approx(sacrebleu.corpus_bleu(found, [gold]).score / 100, abs=1e-12)


def test_of_several_right_texts_each_example_has_its_own(verses):
    gold, found = rows(verses, 4)
    several = [[gold[0], gold[1]], [gold[1]], gold[2], [gold[3], gold[0], gold[2]]]
    streams = [[gold[0], gold[1], gold[2], gold[3]], [gold[1], None, None, gold[0]], [None, None, None, gold[2]]]
    assert bleu(several, found) == pytest.approx(sacrebleu.corpus_bleu(found, streams).score / 100, abs=1e-12)
    assert bleu(several, found) >= bleu(gold, found) and rougeL(several, found) >= rougeL(gold, found)


def test_rouge_is_rouge_scores(verses):
    gold, found = rows(verses)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name, function in (("rouge1", rouge1), ("rouge2", rouge2), ("rougeL", rougeL)):
        expected = np.mean([scorer.score(*pair)[name].fmeasure for pair in zip(gold, found, strict=True)])
        assert function(gold, found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_resamples_are_the_metric_on_the_drawn_rows(name, verses):
    gold, found = rows(verses, 20)
    (fast,) = resampled(name, gold, [found])
    chance = generator(0, 0, 0, "draws")
    counts = np.stack([np.bincount(chance.integers(20, size=20), minlength=20) for _ in range(4)]).astype(float)
    for row, value in zip(counts, fast(counts), strict=True):
        drawn = np.repeat(np.arange(20), row.astype(int))
        expected = registry.resolve("metrics", name)([gold[i] for i in drawn], [found[i] for i in drawn])
        assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_silence_scores_nothing(name):
    assert registry.resolve("metrics", name)(["some words stand here now"] * 2, ["", ""]) == 0.0
