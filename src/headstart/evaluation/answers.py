"""Metrics for answers to questions, computed as SQuAD's official scripts do.

A gold value has SQuAD's form: a mapping whose `text` lists the reference answers, empty where the question has none.
A prediction is a text, empty for "no answer".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import CORRECT, F1, Floats, Sums, metric, plain, same_length

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and articles, with single spaces between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def _exact(gold: str, predicted: str) -> float:
    return float(gold == predicted)


def _overlap(gold: str, predicted: str) -> float:
    """Return the F1 of two bags of words; two empty bags give 0, as in the official script."""
    gold_words, predicted_words = Counter(gold.split()), Counter(predicted.split())
    shared = (gold_words & predicted_words).total()
    return 2 * shared / (gold_words.total() + predicted_words.total()) if shared else 0.0


def _of_examples(compare: Callable[[str, str], float]) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    """Return a function that computes each example's best agreement with any of its answers, and 1 to count it."""

    def values(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        rows = [plain(gold), plain(predicted)]
        same_length(rows)
        scores = []
        for answers, prediction in zip(*rows, strict=True):
            # A gold value passed as the prediction counts as its first answer.
            text = normalized(prediction if isinstance(prediction, str) else next(iter(prediction["text"]), ""))
            # SQuAD 2.0: only an empty prediction answers a question without an answer.
            agreements = [compare(normalized(answer), text) for answer in answers["text"]] or [float(not text)]
            scores.append(max(agreements))
        return np.column_stack([scores, np.ones(len(scores))])

    return values


_exact_matches, _overlaps = _of_examples(_exact), _of_examples(_overlap)


@metric("answers", sums=Sums(_exact_matches, ratio_of_sums), family=CORRECT)
def squad_exact_match(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Fraction of questions whose answer equals a gold answer, apart from case, articles and punctuation.

    Paper: Rajpurkar et al. 2016, SQuAD, section 6.1; unanswerable questions: Rajpurkar et al. 2018
    """
    return float(_exact_matches(gold, predicted)[:, 0].mean())


@metric("answers", sums=Sums(_overlaps, ratio_of_sums), family=F1)
def squad_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean over questions of the word F1 between the answer and the closest gold answer.

    Paper: Rajpurkar et al. 2016, SQuAD, section 6.1; unanswerable questions: Rajpurkar et al. 2018
    """
    return float(_overlaps(gold, predicted)[:, 0].mean())
