"""BLEU and ROUGE: agreement with the libraries, with one or several references, and on resamples."""

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
    """Verses as gold, and the same with words dropped, or reversed."""
    gold, predicted = [], []
    for number, verse in enumerate(verses[:count]):
        rng = generator(0, 0, number, "words")
        words = verse.split()
        kept = [word for word in words if rng.random() > 0.2] or words
        if number % 3 == 0:
            kept.reverse()
        gold.append(verse)
        predicted.append(" ".join(kept))
    return gold, predicted


def test_bleu_agrees_with_sacrebleu(verses):
    gold, predicted = rows(verses)
    assert bleu(gold, predicted) == pytest.approx(sacrebleu.corpus_bleu(predicted, [gold]).score / 100, abs=1e-12)


def test_each_example_has_its_own_references(verses):
    gold, predicted = rows(verses, 4)
    several = [[gold[0], gold[1]], [gold[1]], gold[2], [gold[3], gold[0], gold[2]]]
    streams = [[gold[0], gold[1], gold[2], gold[3]], [gold[1], None, None, gold[0]], [None, None, None, gold[2]]]
    assert bleu(several, predicted) == pytest.approx(sacrebleu.corpus_bleu(predicted, streams).score / 100, abs=1e-12)
    assert bleu(several, predicted) >= bleu(gold, predicted) and rougeL(several, predicted) >= rougeL(gold, predicted)


def test_rouge_agrees_with_rouge_score(verses):
    gold, predicted = rows(verses)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name, function in (("rouge1", rouge1), ("rouge2", rouge2), ("rougeL", rougeL)):
        expected = np.mean([scorer.score(*pair)[name].fmeasure for pair in zip(gold, predicted, strict=True)])
        assert function(gold, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_resamples_are_the_metric_on_the_drawn_rows(name, verses):
    gold, predicted = rows(verses, 20)
    (fast,) = resampled(name, gold, [predicted])
    rng = generator(0, 0, 0, "draws")
    counts = np.stack([np.bincount(rng.integers(20, size=20), minlength=20) for _ in range(4)]).astype(float)
    for row, value in zip(counts, fast(counts), strict=True):
        drawn = np.repeat(np.arange(20), row.astype(int))
        expected = registry.resolve("metrics", name)([gold[i] for i in drawn], [predicted[i] for i in drawn])
        assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_empty_predictions_score_zero(name):
    assert registry.resolve("metrics", name)(["some words stand here now"] * 2, ["", ""]) == 0.0
