"""The sections of the page of errors as tables, lists of rows, sentences and charts, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from headstart.core.pages.charts import ChartLine, ChartPoint, IntervalRow, bar_chart, interval_chart, line_chart
from headstart.core.pages.svg import Marker
from headstart.evaluation.calibration import Calibration
from headstart.evaluation.intervals import Estimate
from headstart.evaluation.label_sets import LABEL_SET
from headstart.evaluation.metrics import about
from headstart.evaluation.report.facts import Evaluation, Matrix, SliceTable
from headstart.evaluation.significance import describe_p

MOST_CLASS_ROWS = 50
"""Classes in the table of classes."""
_MOST_BARS = 25


class Quoted(str):
    """Text from the data, such as a label or a row, which must be shown as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class ReportTable:
    """A table with a caption; the first column names the rows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    shades: Sequence[Sequence[int]] = ()
    """For a confusion matrix: how dark each cell is, 0 to 9; without it, cells have no shade."""


@dataclass(frozen=True)
class ReportRow:
    """A row of the data: facts about it by name, and its text."""

    facts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class ReportSection:
    """A section: sentences, charts, tables, then rows of the data."""

    title: str
    notes: Sequence[str] = ()
    figures: Sequence[Markup] = ()
    tables: Sequence[ReportTable] = ()
    rows_caption: str = ""
    rows: Sequence[ReportRow] = field(default_factory=list)


def sections(facts: Evaluation) -> list[ReportSection]:
    """Return the sections that apply to the task, in the order of the page."""
    parts = [
        _scores(facts), _against(facts), _label_errors(facts), _worst(facts), _classes(facts), _matrix(facts),
        _calibration(facts.calibration, facts.kind), _residuals(facts),
        _sliced(facts.by_column), _sliced(facts.by_length),
    ]  # fmt: skip
    return [part for part in parts if part is not None]


def summary(facts: Evaluation) -> list[str]:
    """Return the main facts in sentences."""
    first = next(iter(facts.metrics))
    lines = [facts.warning] if facts.warning else []
    lines += [f"{first}: {score(facts.metrics[first], first)} on {facts.rows:,} rows (95 % interval in parentheses)."]
    if facts.errors is not None:
        lines.append(f"{facts.errors:,} of {facts.rows:,} rows are predicted wrongly.")
    if facts.calibration is not None:
        lines.append(_confidence_sentence(facts.calibration, facts.kind))
    if facts.label_errors is not None:
        found = facts.label_errors.found
        lines.append(f"The model confidently disagrees with the labels of {found:,} rows: check them.")
    if facts.against is not None:
        lines.append(_lead_sentence(facts))
    return lines


def score(estimate: Estimate, metric: str) -> str:
    """Return a score with its interval, scaled as tables show the metric."""
    scale, decimals = _scale(metric)
    if estimate.value is None:
        return "–"
    text = f"{scale * estimate.value:.{decimals}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({scale * estimate.low:.{decimals}f} to {scale * estimate.high:.{decimals}f})"


def _scale(metric: str) -> tuple[float, int]:
    if metric == "mean absolute error":
        return 1.0, 3
    known = about(metric)
    return known.scale, known.decimals


def _title(metric: str) -> str:
    scale, _ = _scale(metric)
    return metric if scale == 1 else f"{metric} × {scale:g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _scores(facts: Evaluation) -> ReportSection:
    rows = [[_title(name), score(estimate, name)] for name, estimate in facts.metrics.items()]
    if facts.residuals is not None:
        rows.append(["mean absolute error", score(facts.residuals.absolute, "mean absolute error")])
    caption = f"Metrics on {facts.rows:,} rows, with the 95 % interval over resampled rows (bootstrap)"
    return ReportSection("Scores", tables=[ReportTable(caption, ["metric", "value"], rows, [False, True])])


def _lead_sentence(facts: Evaluation) -> str:
    against = facts.against
    assert against is not None
    verdict = "decided" if against.is_decided else "undecided"
    return (
        f"{against.metric}: {score(Estimate(against.value), against.metric)} against "
        f"{score(Estimate(against.other), against.metric)} of the other model; lead "
        f"{score(against.lead, against.metric)}, {verdict} ({describe_p(against.p_value)})."
    )


def _against(facts: Evaluation) -> ReportSection | None:
    against = facts.against
    if against is None:
        return None
    notes = [
        _lead_sentence(facts),
        "The paired bootstrap over rows tests the difference between these two models. Training them again with other "
        "seeds may change it.",
    ]
    counts = ReportTable(
        "Rows by which model predicts them better", ["this model is", "rows"],
        [["better", f"{against.better:,}"], ["worse", f"{against.worse:,}"], ["equally good", f"{against.equal:,}"]],
        [False, True],
    )  # fmt: skip
    rows = [
        ReportRow(
            {
                "row": str(row.row), "this model is": "better" if row.is_better else "worse", "gold": _quoted(row.gold),
                "this model": _quoted(row.predicted), "other model": _quoted(row.other),
            },
            row.text,
        )
        for row in against.rows
    ]  # fmt: skip
    caption = f"{_of(len(rows), against.better + against.worse)} rows on which the models differ"
    title = Quoted(f"Comparison with {against.model}")
    return ReportSection(title, notes, (), [counts], caption, rows)


def _label_errors(facts: Evaluation) -> ReportSection | None:
    found = facts.label_errors
    if found is None:
        return None
    source = "the model" if found.models == 1 else f"{found.models} models (one per seed), averaged"
    notes = [
        f"Rows whose label disagrees confidently with the probabilities of {source} (confident learning, Northcutt et "
        "al. 2021): the probability of another label is at least the mean of that label over its own rows. Check these "
        "labels first. The model may be wrong instead, and wrong labels that it agrees with are not found.",
    ]
    rows = [
        ReportRow(
            {
                "row": str(row.row), "label": _quoted(row.given), "suggested": _quoted(row.suggested),
                "probability of the label": f"{row.given_probability:.3f}",
                "of the suggested one": f"{row.suggested_probability:.3f}",
            },
            row.text,
        )
        for row in found.rows
    ]  # fmt: skip
    caption = f"{_of(len(rows), found.found)} rows to check, the surest first"
    return ReportSection("Labels to check", notes, (), (), caption, rows)


def _worst(facts: Evaluation) -> ReportSection | None:
    if not facts.worst:
        return None
    is_error = facts.worst_by.startswith("error")
    name = f"{facts.worst_by} (prediction − gold)" if is_error else facts.worst_by
    rows = []
    for row in facts.worst:
        known: dict[str, str] = {"row": str(row.row)}
        if row.gold is not None:
            known["gold"] = _quoted(row.gold)
        known["predicted"] = _quoted(row.predicted)
        if row.score is not None:
            known[name] = f"{row.score:+.3f}" if is_error else f"{row.score:.3f}"
        rows.append(ReportRow(known, row.text))
    total = facts.rows if facts.errors is None else facts.errors
    order = f", by {name}, the worst first" if name else ", in the order of the data"
    what = "errors" if facts.errors is not None else "rows"
    return ReportSection("Worst errors", (), (), (), f"{_of(len(rows), total)} {what}{order}", rows)


def _classes(facts: Evaluation) -> ReportSection | None:
    if not facts.classes:
        return None
    what = "tag" if facts.kind == "labels" else "class"
    shown = facts.classes[:MOST_CLASS_ROWS]
    rows = [
        [
            _quoted(item.label), f"{item.support:,}", f"{item.predicted:,}", _percent(item.precision),
            score(item.recall, "accuracy"), _percent(item.f1),
        ]
        for item in shown
    ]  # fmt: skip
    caption = f"{_of(len(shown), len(facts.classes))} {'tags' if what == 'tag' else 'classes'}, the most frequent first"
    header = [what, "rows" if what == "class" else "words", "predicted", "precision × 100", "recall × 100", "F1 × 100"]
    bars = _bars([(str(item.label), item.recall) for item in shown[:_MOST_BARS]], "accuracy")
    return ReportSection(
        f"Score by {what}", (), [interval_chart(f"Recall × 100 by {what}", bars)] if bars else [],
        [ReportTable(caption, header, rows, [False, *[True] * 5])],
    )  # fmt: skip


def _matrix(facts: Evaluation) -> ReportSection | None:
    matrix = facts.matrix
    if matrix is None:
        return None
    tables = [_matrix_table(matrix)]
    if facts.confusions:
        rows = [
            [_quoted(pair.gold), _quoted(pair.predicted), f"{pair.count:,}", _percent(pair.fraction)]
            for pair in facts.confusions
        ]
        header = ["gold", "predicted", "count", "% of the gold class"]
        tables.append(ReportTable("The most frequent confusions", header, rows, [False, False, True, True]))
    return ReportSection("Confusion matrix", (), (), tables)


def _matrix_table(matrix: Matrix) -> ReportTable:
    labels = [_quoted(label) for label in matrix.labels]
    left_out = matrix.classes - len(labels)
    caption = "Rows are gold classes, columns predicted classes, the most frequent class first"
    if left_out:
        caption += f"; the {len(labels)} most confused of {matrix.classes} classes"
    body, shades = [], []
    for label, counts in zip(labels, matrix.counts, strict=True):
        total = sum(counts) or 1
        body.append([label, *(f"{count:,}" for count in counts)])
        shades.append([round(9 * count / total) for count in counts])
    return ReportTable(caption, ["gold", *labels], body, [False, *[True] * len(labels)], shades)


def _confidence_sentence(found: Calibration, kind: str) -> str:
    if kind == LABEL_SET:
        return (
            f"The mean probability of a label is {_percent(found.confidence)} %, and {_percent(found.accuracy)} % of "
            f"the labels are present; expected calibration error over all labels of all rows {found.error:.4f}."
        )
    return (
        f"The model is {_percent(found.confidence)} % sure on average and right in {_percent(found.accuracy)} % of the "
        f"rows; expected calibration error {found.error:.3f}."
    )


def _calibration(found: Calibration | None, kind: str) -> ReportSection | None:
    if found is None:
        return None
    sure, right = ("probability", "fraction present") if kind == LABEL_SET else ("confidence", "accuracy")
    what = "labels" if kind == LABEL_SET else "rows"
    points = [
        ChartPoint(
            part.confidence, part.accuracy.value or 0.0,
            f"{part.rows:,} {what}: {sure} {_percent(part.confidence)} %, {right} {_percent(part.accuracy.value)} %",
            part.accuracy.low, part.accuracy.high,
        )
        for part in found.bins
    ]  # fmt: skip
    start = min(0.0 if len(found.bins) == 1 else found.bins[0].low, points[0].x)
    perfect = [ChartPoint(start, start), ChartPoint(1.0, 1.0)]
    lines = [ChartLine("perfect", Marker.of(8), perfect, is_dashed=True), ChartLine("model", Marker.of(0), points)]
    ranges = [f"{part.low:.1f} to {part.high:.1f}" for part in found.bins]
    rows = [
        [name, f"{part.rows:,}", _percent(part.confidence), score(part.accuracy, "accuracy")]
        for name, part in zip(ranges, found.bins, strict=True)
    ]
    header = [sure, what, f"mean {sure} × 100", f"{right} × 100"]
    figures = [
        line_chart(f"{right.capitalize()} by {sure}", sure, right, lines),
        bar_chart(f"{what.capitalize()} by {sure}", dict(zip(ranges, [part.rows for part in found.bins], strict=True))),
    ]
    notes = [_confidence_sentence(found, kind), "Points below the dashed line: the model is too sure."]
    table = ReportTable(f"{right.capitalize()} by {sure} of the prediction", header, rows, [False, True, True, True])
    return ReportSection("Calibration", notes, figures, [table])


def _residuals(facts: Evaluation) -> ReportSection | None:
    found = facts.residuals
    if found is None:
        return None
    direction = "too high" if found.mean > 0 else "too low"
    notes = [
        f"Predictions are {abs(found.mean):.3f} {direction} on average; the root mean square error is "
        f"{found.root_mean_square:.3f}."
    ]
    rows = [[name, f"{count:,}"] for name, count in found.histogram.items()]
    table = ReportTable("Rows by error (prediction − gold)", ["error", "rows"], rows, [False, True])
    return ReportSection("Errors of numbers", notes, [bar_chart("Rows by error", found.histogram)], [table])


def _sliced(table: SliceTable | None) -> ReportSection | None:
    if table is None:
        return None
    rows = [[Quoted(part.name), f"{part.rows:,}", score(part.score, table.metric)] for part in table.slices]
    bars = _bars([(part.name, part.score) for part in table.slices], table.metric)
    figures = [interval_chart(f"{_title(table.metric)} by {table.by}", bars)] if bars else []
    caption = f"{table.metric} by {table.by}, with 95 % intervals"
    header = [Quoted(table.by), "rows", _title(table.metric)]
    return ReportSection(
        Quoted(f"Score by {table.by}"), (), figures, [ReportTable(Quoted(caption), header, rows, [False, True, True])]
    )


def _bars(scores: Sequence[tuple[str, Estimate]], metric: str) -> list[IntervalRow]:
    """Return the rows of a chart, scaled as tables show the metric; scores without a value are left out."""
    scale, _ = _scale(metric)

    def scaled(value: float | None) -> float | None:
        return None if value is None else scale * value

    return [
        IntervalRow(name, scale * found.value, scaled(found.low), scaled(found.high))
        for name, found in scores
        if found.value is not None
    ]


def _quoted(value: Any) -> Quoted:
    if isinstance(value, float):
        return Quoted(f"{value:.6g}")
    return Quoted(value)


def _of(shown: int, total: int) -> str:
    return f"{total:,}" if shown == total else f"{shown:,} of {total:,}"
