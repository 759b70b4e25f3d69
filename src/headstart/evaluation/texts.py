"""Metrics for one text per example, computed by sacrebleu and rouge-score.

A gold value is a reference text, or a list of them. A prediction is a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np

from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length

_ORDERS = 4
"""BLEU counts n-grams of one to four words."""


def _rows(gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[list[list[str]], list[str]]:
    """Return the reference texts of each example, and the predicted text."""
    rows = [plain(gold), plain(predicted)]
    same_length(rows)
    references = [[value] if isinstance(value, str) else list(value) for value in rows[0]]
    # A gold value passed as the prediction counts as its first reference.
    return references, [value if isinstance(value, str) else value[0] for value in rows[1]]


def _bleu_counts(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return what BLEU sums over the examples: matching n-grams, all n-grams, and both lengths."""
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(effective_order=True)
    counts = []
    for references, text in zip(*_rows(gold, predicted), strict=True):
        score = scorer.sentence_score(text, references)
        counts.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(counts, dtype=np.float64)


def _bleu_of_sums(sums: Floats) -> Floats:
    from sacrebleu.metrics.bleu import BLEU

    values = []
    for row in sums.round().astype(np.int64).tolist():
        matches, total, (length, reference) = row[:_ORDERS], row[_ORDERS : 2 * _ORDERS], row[2 * _ORDERS :]
        values.append(BLEU.compute_bleu(matches, total, length, reference, smooth_method="exp").score / 100)
    return np.array(values, dtype=np.float64)


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    """Return one scorer for all three metrics, because its stemmer is slow to build."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def _rouge(name: str) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    """Return a function that computes each example's F, and 1 to count it."""

    def values(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        rows = zip(*_rows(gold, predicted), strict=True)
        scores = [_rouge_scorer().score_multi(references, text)[name].fmeasure for references, text in rows]
        return np.column_stack([scores, np.ones(len(scores))])

    return values


_rouge1, _rouge2, _rougeL = map(_rouge, ("rouge1", "rouge2", "rougeL"))


@metric("text", sums=Sums(_bleu_counts, _bleu_of_sums))
def bleu(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """BLEU of the whole split by sacrebleu, with its default tokenizer (13a), case-sensitive.

    Examples may have different numbers of references; each is compared with its own.
    Paper: Papineni et al. 2002; Post 2018, sacrebleu
    """
    from sacrebleu.metrics.bleu import BLEU

    references, texts = _rows(gold, predicted)
    streams = [list(stream) for stream in zip_longest(*references)]
    return float(BLEU().corpus_score(texts, streams).score / 100)


@metric("text", sums=Sums(_rouge1, ratio_of_sums))
def rouge1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean F of single words by rouge-score, with English stemming; letters other than a to z are ignored.

    Paper: Lin 2004, ROUGE
    """
    return float(_rouge1(gold, predicted)[:, 0].mean())


@metric("text", sums=Sums(_rouge2, ratio_of_sums))
def rouge2(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean F of word pairs by rouge-score, with English stemming; letters other than a to z are ignored.

    Paper: Lin 2004, ROUGE
    """
    return float(_rouge2(gold, predicted)[:, 0].mean())


@metric("text", sums=Sums(_rougeL, ratio_of_sums))
def rougeL(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean F of the longest common subsequence of words by rouge-score, with English stemming; only a to z count.

    Paper: Lin 2004, ROUGE
    """
    return float(_rougeL(gold, predicted)[:, 0].mean())
