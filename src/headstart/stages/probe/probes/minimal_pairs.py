"""Minimal pairs: does the model find the grammatical sentence of a pair likelier than the ungrammatical one?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from headstart.core.errors import DataError
from headstart.core.pages.charts import IntervalRow, interval_chart
from headstart.evaluation.intervals import Estimate, bootstrap_mean, wilson
from headstart.evaluation.report.content import Quoted, ReportRow, ReportSection, ReportTable
from headstart.stages.probe.likelihood import log_likelihoods
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import (
    Measured,
    Probe,
    ProbeReport,
    ProbeScore,
    data_file,
    percent,
    read_columns,
    sample,
)

_DEFAULT_LIMIT = 20
_BLIMP = "probes/blimp.parquet"
_BLIMP_PARADIGMS = 67
_WORST = 20
_METHODS = {"encoder": "pseudo-likelihood", "decoder": "likelihood"}


@dataclass(frozen=True)
class Pair:
    """Two sentences that differ in one point of grammar, with the paradigm, the phenomenon and the field of it."""

    good: str
    bad: str
    uid: str = "all pairs"
    term: str = ""
    field: str = ""


@dataclass(frozen=True)
class _Scored:
    """The pairs of one network with the log-likelihood of both sentences; NaN for a sentence that is too long."""

    good: list[float]
    bad: list[float]

    @property
    def margins(self) -> list[float]:
        """The log-likelihood of the grammatical sentence minus that of the other; NaN if one is too long."""
        return [g - b for g, b in zip(self.good, self.bad, strict=True)]

    @property
    def points(self) -> list[float]:
        """1 for each pair whose grammatical sentence is likelier, 0.5 for a tie, else 0; NaN if one is too long."""
        return [m if math.isnan(m) else 1.0 if m > 0 else 0.5 if m == 0 else 0.0 for m in self.margins]

    @property
    def skipped(self) -> int:
        """The number of pairs with a sentence that is too long."""
        return sum(map(math.isnan, self.margins))


class MinimalPairs(Probe):
    """Compare the likelihood of grammatical and ungrammatical sentences, by phenomenon and paradigm.

    Reads the columns `good` and `bad` and, where they exist, `uid` (the paradigm), `term` (the phenomenon) and `field`.
    By default the data is BLiMP. Ties count a half.
    """

    paper: ClassVar[str] = "Warstadt et al. 2020, BLiMP; encoders: Kauf & Ivanova 2023"
    data: ClassVar[tuple[str, ...]] = (_BLIMP,)
    figures_need_untrained: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the pairs and choose at most `limit` of each paradigm."""
        path = self.settings.text or data_file(_BLIMP)
        if path is None:
            return (
                f"there is no {_BLIMP} in the data folder; set HEADSTART_DATA to it, or pass a file of pairs as --text"
            )
        rows = read_columns(path, ("good", "bad"), ("uid", "term", "field"))
        by_paradigm: dict[str, list[Pair]] = {}
        for row in rows:
            pair = Pair(**{name: str(value) for name, value in row.items() if value is not None})
            by_paradigm.setdefault(pair.uid, []).append(pair)
        limit = self.row_count(_DEFAULT_LIMIT, fewest=4)
        self.source, self.total = str(path if self.settings.text else _BLIMP), len(rows)
        self.pairs = [
            pairs[i]
            for uid, pairs in by_paradigm.items()
            for i in sample(len(pairs), limit, self.settings.seed, f"minimal pairs {uid}")
        ]
        return None

    def measure(self, network: ProbedNetwork) -> _Scored:
        """Return the log-likelihood of all sentences."""
        scores = log_likelihoods(network, [text for pair in self.pairs for text in (pair.good, pair.bad)])
        found = _Scored(scores[::2], scores[1::2])
        if found.skipped == len(self.pairs):
            raise DataError(
                f"no pair of {self.source} fits {network.name}, which takes at most {network.max_length:,} tokens",
                allowed="A sentence is scored as a whole",
                do="Pass shorter sentences",
            )
        return found

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return accuracies with intervals, over all pairs, by phenomenon and by paradigm."""
        groups = {"phenomenon": self._groups(lambda pair: pair.term), "paradigm": self._groups(lambda pair: pair.uid)}
        scores = [score for each in measured for score in self.figures(each)]
        tables = {"minimal_pairs": self._pair_rows(measured)}
        for name, indices in groups.items():
            if len(indices) > 1:
                tables[f"minimal_pairs-{name}"] = _group_rows(measured, name, indices)
        return ProbeReport(scores, self._sections(measured, groups), self._numbers(measured, groups), tables)

    def figures(self, each: Measured) -> list[ProbeScore]:
        """Return the accuracy over all pairs."""
        untrained = {} if each.untrained is None else {"untrained": _accuracy(each.untrained.points).value}
        points, measure = each.trained.points, f"accuracy ({_METHODS[each.family]})"
        return [ProbeScore(each.model, measure, _accuracy(points), untrained, points=points)]

    def _groups(self, key: Callable[[Pair], str]) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for i, pair in enumerate(self.pairs):
            groups.setdefault(key(pair), []).append(i)
        return groups

    def _pair_rows(self, measured: Sequence[Measured]) -> list[dict[str, Any]]:
        return [
            {
                "model": each.model, **asdict(pair), "good_log_likelihood": each.trained.good[i],
                "bad_log_likelihood": each.trained.bad[i], "points": points[i], "untrained_points": untrained[i],
            }
            for each in measured
            for points, untrained in [(each.trained.points, each.untrained.points)]
            for i, pair in enumerate(self.pairs)
            if not math.isnan(points[i])
        ]  # fmt: skip

    def _numbers(self, measured: Sequence[Measured], groups: dict[str, dict[str, list[int]]]) -> dict[str, Any]:
        models = {
            each.model: {
                "method": _METHODS[each.family],
                "accuracy": asdict(_accuracy(each.trained.points)),
                "untrained": asdict(_accuracy(each.untrained.points)),
                "lead": asdict(_lead(each)),
                "ties": each.trained.points.count(0.5),
                "skipped": each.trained.skipped,
                **{
                    f"by_{name}": {
                        group: asdict(_accuracy(_at(each.trained.points, i))) for group, i in indices.items()
                    }
                    for name, indices in groups.items()
                },
            }
            for each in measured
        }
        return {"data": self.source, "pairs": len(self.pairs), "of": self.total, "models": models}

    def _sections(self, measured: Sequence[Measured], groups: dict[str, dict[str, list[int]]]) -> list[ReportSection]:
        notes = [
            f"{len(self.pairs):,} of the {self.total:,} pairs of {self.source}. The accuracy is the fraction of pairs "
            "whose grammatical sentence is likelier. Ties count a half, and guessing gives 50. Intervals (95 %) are "
            "Wilson's; that of the lead over the same network untrained is the bootstrap's over pairs.",
            "The likelihood of a decoder is that of the chain rule. That of an encoder is the pseudo-likelihood: each "
            "token is predicted with it and the later tokens of its word masked (Kauf & Ivanova 2023). The two are "
            "different measures.",
        ]
        notes += [
            f"{each.model}: {each.trained.skipped:,} of the {len(self.pairs):,} pairs have a sentence that is too long "
            "for it, and were left out."
            for each in measured
            if each.trained.skipped
        ]
        if len(groups["paradigm"]) == _BLIMP_PARADIGMS and not self.settings.text:
            notes.append(
                "Published on all of BLiMP (Warstadt et al. 2020): people 88.6 (one person's choice; 96.4 by "
                "majority vote), GPT-2 83.0, LSTM 69.8, 5-gram 61.2. A difference from these figures includes that of "
                "the training texts."
            )
        rows = [
            [
                Quoted(each.model), _METHODS[each.family], percent(_accuracy(each.trained.points)),
                percent(_accuracy(each.untrained.points)), percent(_lead(each), sign="+"),
                f"{each.trained.points.count(0.5):,}",
            ]
            for each in measured
        ]  # fmt: skip
        header = ["model", "method", "accuracy × 100", "untrained", "lead over untrained", "ties"]
        total = ReportTable("Accuracy over all pairs", header, rows, [False, False, True, True, True, True])
        sections = [ReportSection("Minimal pairs", notes, (), [total])]
        for name, indices in groups.items():
            if len(indices) > 1:
                charts = [_chart(each, name, indices) for each in measured] if name == "phenomenon" else []
                table = _group_table(measured, name, indices)
                sections.append(ReportSection(f"Minimal pairs by {name}", (), charts, [table]))
        return [*sections, *(self._worst(each) for each in measured)]

    def _worst(self, each: Measured) -> ReportSection:
        """Return the pairs whose ungrammatical sentence is likelier by the most."""
        margins = each.trained.margins
        worst = [i for i in sorted(range(len(margins)), key=lambda i: margins[i]) if margins[i] < 0][:_WORST]
        wrong = sum(margin < 0 for margin in margins)
        rows = [
            ReportRow(
                {"paradigm": self.pairs[i].uid, "log-likelihood, good − bad": f"{margins[i]:+.2f}"},
                f"good: {self.pairs[i].good}\nbad:  {self.pairs[i].bad}",
            )
            for i in worst
        ]
        caption = f"{len(rows):,} of {wrong:,} pairs, the largest difference first"
        return ReportSection(f"Wrong pairs of {each.model}", (), (), (), caption, rows)


def _at(values: list[float], indices: list[int]) -> list[float]:
    return [values[i] for i in indices]


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _accuracy(points: Sequence[float]) -> Estimate:
    known = _known(points)
    return wilson(sum(known), len(known))


def _lead(each: Measured) -> Estimate:
    return bootstrap_mean(_known([a - b for a, b in zip(each.trained.points, each.untrained.points, strict=True)]))


def _group_rows(measured: Sequence[Measured], name: str, groups: dict[str, list[int]]) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model, name: group, "pairs": len(_known(_at(each.trained.points, indices))),
            **{f"accuracy{'' if key == 'value' else f'_{key}'}": value for key, value in asdict(estimate).items()},
            "untrained": _accuracy(_at(each.untrained.points, indices)).value,
        }
        for each in measured
        for group, indices in groups.items()
        for estimate in [_accuracy(_at(each.trained.points, indices))]
    ]  # fmt: skip


def _group_table(measured: Sequence[Measured], name: str, groups: dict[str, list[int]]) -> ReportTable:
    header = [name, "pairs"]
    for each in measured:
        header += [Quoted(each.model), "untrained"]
    rows = []
    for group, indices in groups.items():
        row = [Quoted(group), f"{len(indices):,}"]
        for each in measured:
            row.append(percent(_accuracy(_at(each.trained.points, indices))))
            row.append(f"{100 * (_accuracy(_at(each.untrained.points, indices)).value or 0.0):.1f}")
        rows.append(row)
    return ReportTable(f"Accuracy × 100 by {name}", header, rows, [False, *[True] * (len(header) - 1)])


def _chart(each: Measured, name: str, groups: dict[str, list[int]]) -> Any:
    estimates = {group: _accuracy(_at(each.trained.points, indices)) for group, indices in groups.items()}
    rows = [
        IntervalRow(group, *(100 * (value or 0.0) for value in (found.value, found.low, found.high)))
        for group, found in sorted(estimates.items(), key=lambda item: -(item[1].value or 0.0))
        if found.value is not None
    ]
    return interval_chart(f"{each.model}: accuracy × 100 by {name}", rows)
