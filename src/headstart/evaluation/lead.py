"""The lead baseline for summaries: the first sentences of the source."""

from __future__ import annotations

import time

from headstart.core import registry
from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.metrics import about
from headstart.evaluation.overlap import sentences

_MOST = 3
"""LEAD-3 is the usual baseline for news; fewer sentences fit short targets."""


def lead(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The first one to three sentences of the source, whichever number scores best on the validation rows.

    For a translation it returns the source unchanged. The training rows and the seed are not used.
    Paper: See et al. 2017 (lead-3); Nenkova 2005
    """
    started = time.perf_counter()
    kind = about(metric).of
    if kind != "text":
        raise NotApplicable(f"it repeats the beginning of a text, and the gold values are of the kind {kind!r}")
    source = next((name for name, values in test.columns.items() if all(isinstance(v, str) for v in values)), None)
    if source is None:
        raise NotApplicable("it repeats the beginning of a text, and no column has texts")
    if not len(validation):
        raise DataError(
            "the lead baseline has no validation rows", do="Give at least one: they choose the number of sentences"
        )
    measure = registry.resolve("metrics", metric)
    scores = {n: measure(validation.labels, _leads(validation, source, n)) for n in range(1, _MOST + 1)}
    best = max(scores, key=lambda n: scores[n])
    chosen = {"sentences": best, f"validation_{metric}": float(scores[best])}
    return BaselineResult(_leads(test, source, best), chosen, time.perf_counter() - started)


def _leads(rows: Examples, source: str, count: int) -> list[str]:
    return [" ".join(sentences(text)[:count]) for text in rows.columns[source]]
