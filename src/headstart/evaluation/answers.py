"""Metrics of answers to questions, counted as SQuAD's official scripts count them.

A gold value is SQuAD's: a mapping whose `text` lists the answers that people gave, an empty list where the question has
none. A prediction is a text, empty for "no answer".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.evaluation.labels import ratio_of_sums
from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and articles, single blanks between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def _exact(wanted: str, found: str) -> float:
    return float(wanted == found)


def _overlap(wanted: str, found: str) -> float:
    """Return the F1 of two bags of words; nothing against nothing is 0, as the script has it."""
    one, other = Counter(wanted.split()), Counter(found.split())
    shared = (one & other).total()
    return 2 * shared / (one.total() + other.total()) if shared else 0.0


def _of_examples(compare: Callable[[str, str], float]) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    """Return a function that gives each example's best agreement with any of its answers, and 1 to count it by."""

    def values(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        rows = [plain(gold), plain(predicted)]
        same_length(rows)
        scores = []
        for answers, prediction in zip(*rows, strict=True):
            # Gold in the place of a prediction: the first of its answers.
            found = normalised(prediction if isinstance(prediction, str) else next(iter(prediction["text"]), ""))
            # SQuAD 2.0: a question without an answer is answered by none, and by nothing else.
            right = [compare(normalised(text), found) for text in answers["text"]] or [float(not found)]
            scores.append(max(right))
        return np.column_stack([scores, np.ones(len(scores))])

    return values


_exact_matches, _overlaps = _of_examples(_exact), _of_examples(_overlap)


@metric("answers", sums=Sums(_exact_matches, ratio_of_sums))
def squad_exact_match(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Share of questions whose answer is one of the gold ones, but for case, articles and punctuation.

    Paper: Rajpurkar et al. 2016, SQuAD, section 6.1; unanswerable questions: Rajpurkar et al. 2018
    """
    return float(_exact_matches(gold, predicted)[:, 0].mean())


@metric("answers", sums=Sums(_overlaps, ratio_of_sums))
def squad_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Mean over questions of the F1 of the words that the answer shares with the nearest gold one.

    Paper: Rajpurkar et al. 2016, SQuAD, section 6.1; unanswerable questions: Rajpurkar et al. 2018
    """
    return float(_overlaps(gold, predicted)[:, 0].mean())
