"""Facts by their frequency in the training corpus: is the truth known because it was read often?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.evaluation.intervals import Estimate, bootstrap, wilson
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.corpus_counts import PhraseCounts
from headstart.stages.probe.probe import percent

_BINS = (0, 1, 10, 100, 1000, 10000)
"""Where the bins of the table begin."""


@dataclass(frozen=True)
class CountedFact:
    """A fact with its counts in the training corpus and the rank of its answer."""

    subject: int
    """Occurrences of the subject."""
    answer: int
    """Occurrences of the answer."""
    together: int
    """Documents with both."""
    rank: int
    untrained_rank: int

    @classmethod
    def of(cls, counts: PhraseCounts, subject: str, answer: str, rank: int, untrained_rank: int) -> CountedFact:
        """Look up the counts of a fact."""
        found = counts.occurrences
        return cls(found[subject], found[answer], counts.together[subject, answer], rank, untrained_rank)


_NAMES = {
    "answer": "occurrences of the answer", "subject": "occurrences of the subject",
    "together": "documents with subject and answer",
}  # fmt: skip


def columns(fact: CountedFact | None) -> dict[str, int | None]:
    """Return the counts of a fact as columns of a table."""
    return {f"{name}_count": None if fact is None else getattr(fact, name) for name in _NAMES}


def section(models: Sequence[tuple[str, PhraseCounts | str, Sequence[CountedFact]]]) -> ReportSection:
    """Return the facts by frequency, for each model with its name, its counts (or why there are none) and its facts."""
    notes = [
        "How often the words of a fact occur in the text that the model was pre-trained on. Upper and lower case are "
        "equal. A model may rank frequent words high whatever the question: compare the untrained network, and the "
        "most frequent answer of the section above. Intervals: 95 %, bootstrap over facts.",
    ]
    shown: list[ReportTable] = []
    for model, counts, facts in models:
        if isinstance(counts, str):
            notes.append(f"{model}: not counted, because {counts}.")
            continue
        part = "" if counts.is_complete else ", the beginning of the corpus"
        notes.append(f"{model}: counted in {counts.documents:,} documents{part}.")
        shown += tables(model, facts)
    return ReportSection("Facts by frequency", notes, (), shown)


def correlation(facts: Sequence[CountedFact], name: str, is_untrained: bool = False) -> Estimate:
    """Return Spearman's correlation of a count with how high the answer is ranked; positive: frequent, known better."""
    counts = [float(getattr(fact, name)) for fact in facts]
    heights = [-float(fact.untrained_rank if is_untrained else fact.rank) for fact in facts]
    if len(set(counts)) < 2 or len(set(heights)) < 2:
        return Estimate(None)
    return bootstrap("spearman", counts, heights)


def tables(model: str, facts: Sequence[CountedFact]) -> list[ReportTable]:
    """Return the correlations, and the facts by how often the answer and how often both words occur."""
    rows = [
        [title, _signed(correlation(facts, name)), _signed(correlation(facts, name, is_untrained=True))]
        for name, title in _NAMES.items()
    ]
    caption = f"{model}: rank correlation with how high the answer is ranked (+1: the more frequent, the higher)"
    header = ["frequency in the training corpus", "correlation", "untrained"]
    shown = [ReportTable(Quoted(caption), header, rows, [False, True, True])]
    for name in ("answer", "together"):
        body = [
            [title, f"{len(part):,}", percent(_first(part)), f"{np.median([f.rank for f in part]):,.0f}",
             f"{np.median([f.untrained_rank for f in part]):,.0f}"]
            for title, part in _binned(facts, name)
        ]  # fmt: skip
        header = [_NAMES[name], "facts", "first × 100", "median rank", "untrained"]
        shown.append(ReportTable(Quoted(f"{model}: facts by {_NAMES[name]}"), header, body, [False, *[True] * 4]))
    return shown


def numbers(facts: Sequence[CountedFact]) -> dict[str, Any]:
    """Return the correlations and the bins as plain JSON types."""
    return {
        name: {
            "correlation": asdict(correlation(facts, name)),
            "untrained": asdict(correlation(facts, name, is_untrained=True)),
            "bins": [
                {"count": title, "facts": len(part), "first": asdict(_first(part)),
                 "median_rank": float(np.median([fact.rank for fact in part]))}
                for title, part in _binned(facts, name)
            ],
        }
        for name in _NAMES
    }  # fmt: skip


def _first(facts: Sequence[CountedFact]) -> Estimate:
    return wilson(sum(fact.rank == 1 for fact in facts), len(facts))


def _binned(facts: Sequence[CountedFact], name: str) -> list[tuple[str, list[CountedFact]]]:
    """Return the facts of each bin that is not empty, with the name of the bin."""
    bins = []
    for start, end in zip(_BINS, (*_BINS[1:], None), strict=True):
        part = [f for f in facts if getattr(f, name) >= start and (end is None or getattr(f, name) < end)]
        title = f"{start:,} or more" if end is None else str(start) if end == start + 1 else f"{start:,} to {end - 1:,}"
        if part:
            bins.append((title, part))
    return bins


def _signed(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value:+.2f} ({estimate.low:+.2f} to {estimate.high:+.2f})"
