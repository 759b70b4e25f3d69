"""The page of `headstart advise`: the methods, the learning curve and the recommendation, in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headstart.core.pages import charts, page
from headstart.core.pages.charts import ChartLine, ChartPoint, IntervalRow
from headstart.core.pages.markdown import escape, markdown_table
from headstart.core.pages.page import PageTable
from headstart.core.pages.svg import Marker
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.metrics import about
from headstart.evaluation.significance import describe_p
from headstart.studies.advise.prior import MOST_LABELS
from headstart.studies.advise.rounds import ROUNDS
from headstart.studies.advise.search import ADAPTING_SHARE, CORPUS_SHARE, FINAL_SHARE, WORTHWHILE

_LEAST_KWH = 1e-4
_TEMPLATE = Path(__file__).with_name("advice.html.j2")
RULE = (
    f"Every method predicts held-out rows in {ROUNDS} rounds; the test rows are not read. Learning rates of a method "
    "are compared on the validation rows of each round, and the better half stays for the next. With up to "
    f"{MOST_LABELS:,} labels, a lead is estimated from the held-out rows and from the leads of a study of six data "
    "sets (docs/results/few-labels), and a trained method is not tried, or ends after a round, if the rows still to be "
    f"read can be expected to gain less than {WORTHWHILE * 100:g} points. Where nothing is known before, a trained "
    "method ends early if the 95 % interval of its lead over the best method before it ends below "
    f"{WORTHWHILE * 100:g} points. The search stops after two methods in a row that ended early or were no better, if "
    f"less than {WORTHWHILE * 100:g} points are left to gain, or if the time left is shorter than the forecast of the "
    f"next run and of the final training ({FINAL_SHARE:g} times a run). A dearer method is preferred only if its "
    f"estimated lead is {WORTHWHILE * 100:g} points or more. With a corpus, {100 * CORPUS_SHARE:g} % of the time are "
    f"kept for one more method: the checkpoint is pre-trained on the corpus for {100 * ADAPTING_SHARE:g} % of the "
    "time, and the best network is trained from the checkpoint along that run that a linear probe on the validation "
    "rows prefers. In the time that is left, distillation trains the checkpoint on the labels and on what the best "
    "network predicts for texts of the corpus."
)


class _Scores:
    """Writes scores of one metric: points of a hundred for fractions."""

    def __init__(self, metric: str) -> None:
        self.metric, self.scale, self.decimals = metric, about(metric).scale, about(metric).decimals
        self.unit = " points" if self.scale > 1 else ""

    def one(self, value: float | None, sign: str = "") -> str:
        """Return a score as text."""
        return "–" if value is None else f"{self.scale * value:{sign}.{self.decimals}f}"

    def spread(self, item: Mapping[str, Any], sign: str = "") -> str:
        """Return an interval as text."""
        return "–" if item["low"] is None else f"{self.one(item['low'], sign)} to {self.one(item['high'], sign)}"

    def lead(self, lead: Mapping[str, Any]) -> str:
        """Return a paired comparison as text."""
        difference = self.one(lead["difference"], "+")
        return f"{difference}{self.unit} ({self.spread(lead, '+')}, {describe_p(lead['p'])})"


def sentences(advice: Mapping[str, Any]) -> list[str]:
    """Return the recommendation: which model and why, what dearer methods and more labels would buy, why it ended."""
    scores = _Scores(advice["metric"])
    lines = [*_choice(advice, scores), *_bought(advice, scores), _labels(advice, scores), advice["stopped"]]
    if advice["not_tried"]:
        lines[-1] += f" Not tried: {', '.join(advice['not_tried'])}."
    return [line for line in lines if line]


def _choice(advice: Mapping[str, Any], scores: _Scores) -> list[str]:
    rows = {row["method"]: row for row in advice["methods"]}
    chosen, model = rows[advice["chosen"]], advice["chosen_model"]
    lines = [
        f"Use {chosen['method']}: {scores.metric} {scores.one(chosen['score'])} ({scores.spread(chosen)}) on "
        f"{chosen['rows']:,} held-out rows. The model takes {model['milliseconds']:.0f} ms per text and "
        f"{model['megabytes']:,.0f} MB."
    ]
    if advice["best"] != advice["chosen"]:
        best = rows[advice["best"]]
        lines.append(
            f"No network is better than {best['method']}, which leads by {scores.lead(best['over_chosen'])}. The model "
            "is the best network."
        )
    test = next(row for row in advice["test"]["scores"] if row["method"] == advice["chosen"])
    others = [
        f"{row['method']} {scores.one(row['score'])} ({describe_p(row['behind']['p'])})"
        for row in advice["test"]["scores"] if "behind" in row
    ]  # fmt: skip
    lines.append(
        f"On the {advice['test']['rows']:,} test rows, {chosen['method']} has {scores.metric} "
        f"{scores.one(test['score'])} ({scores.spread(test)}) "
        f"after training on {advice['splits']['train']:,} rows" + (f"; {', '.join(others)}." if others else ".")
    )
    if len(advice["opened_for"]) > 1:
        lines.append(
            f"The test rows were scored for {len(advice['opened_for'])} choices ({', '.join(advice['opened_for'])}), "
            "so this score may be slightly too high."
        )
    return lines


def _bought(advice: Mapping[str, Any], scores: _Scores) -> list[str]:
    """Return what each network after the first bought over the best method before it."""
    lines = []
    for row in advice["methods"]:
        if row["is_network"] and row["lead"] is not None:
            what = "bought" if row["lead"]["difference"] > 0 else "bought nothing:"
            subject = "adapting to your text" if row["adapted"] else row["method"]
            if row["teacher"]:
                subject = f"distillation from {row['teacher']} onto your text"
            line = f"{subject} {what} {scores.lead(row['lead'])} over {row['compared_with']}"
            line += f" for {_time(row['seconds'])}{'; it ' * bool(row['note'])}{row['note']}"
            lines.append(f"{line}{_kept_starts(row['adapted'])}.")
    return lines


def _kept_starts(steps: Sequence[int]) -> str:
    """Return in how many rounds the probe preferred the checkpoint as it was, as a clause."""
    starts = sum(step == 0 for step in steps)
    rounds = "1 round" if len(steps) == 1 else f"{len(steps)} rounds"
    return f"; the probe kept the checkpoint as it was in {starts} of {rounds}" if starts else ""


def _labels(advice: Mapping[str, Any], scores: _Scores) -> str:
    curve = advice["curve"]
    if "gain" not in curve:
        return f"There is no learning curve over labels: {curve['reason']}."
    gain = curve["gain"]
    return (
        f"{curve['more']} more training labels would buy about {scores.one(gain['value'], '+')}{scores.unit} "
        f"({scores.spread(gain, '+')}, 90 % band) at {curve['rows']:,} labels, by the learning curve of "
        f"{curve['method']}."
    )


def methods_table(advice: Mapping[str, Any]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return the header, the rows and which columns are numbers, one row per method."""
    scores = _Scores(advice["metric"])
    metric = scores.metric if scores.scale == 1 else f"{scores.metric} × {scores.scale:g}"
    header = ["method", metric, "95 % interval", "rounds", "rate", "time", "kWh", "price", "ms per text", "MB"]
    body = [
        [
            " + ".join(filter(None, [row["method"], row["adaptation"]]))
            + (" (chosen)" if row["method"] == advice["chosen"] else ""),
            scores.one(row["score"]),
            scores.spread(row),
            str(row["rounds"]),
            "–" if row["rate"] is None else f"{row['rate']:g}",
            _time(row["seconds"]),
            _energy(row["kwh"]),
            _price(row["money"], row["currency"]),
            "–" if row["milliseconds"] is None else f"{row['milliseconds']:.1f}",
            "–" if row["megabytes"] is None else f"{row['megabytes']:,.0f}",
        ]
        for row in advice["methods"]
    ]
    return header, body, [False, *[True] * (len(header) - 1)]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _energy(kwh: float | None) -> str:
    if kwh is None:
        return "–"
    return f"{kwh:.2g}" if kwh >= _LEAST_KWH else f"< {_LEAST_KWH:g}"


def _price(money: float, currency: str) -> str:
    return f"< 0.001 {currency}" if money < 0.001 else f"{money:.3f} {currency}"


def notes(advice: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the table should know."""
    spent, budget = advice["seconds"]["spent"], advice["seconds"]["budget"]
    return [
        f"{advice['data']}. Checkpoint: {advice['checkpoint']}.",
        *(f"{warning}." for warning in advice["warnings"]),
        *(f"{name} is left out: {reason.rstrip('.')}." for name, reason in advice["left_out"].items()),
        f"The methods took {_time(spent)} of {_time(budget)}.",
        f"Cost of the methods and the final training: {PriceTag.from_dict(advice['cost']).sentence()}.",
        "ms per text is measured in batches. MB are the weights that a prediction needs, with the checkpoint. "
        "Baselines take seconds; their energy, latency and size are not measured.",
    ]


def summary(advice: Mapping[str, Any], output: Path) -> str:
    """Return what the command line prints."""
    header, body, _ = methods_table(advice)
    return "\n".join([
        markdown_table(header, body),
        "",
        *sentences(advice),
        *(f"{name} is left out: {reason.rstrip('.')}." for name, reason in advice["left_out"].items()),
        f"model: {output / 'model'}",
        f"page: {output / 'advice.html'}; recipes: {output / 'recipes'}",
        f"next: headstart predict {output / 'model'} FILE --to labeled.csv",
    ])  # fmt: skip


def markdown(advice: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    header, body, numeric = methods_table(advice)
    parts = [
        "# Which method for these labels?",
        "\n".join(f"- {escape(line)}" for line in notes(advice)),
        "## Methods, cheapest first",
        markdown_table(header, body, numeric),
        escape(RULE),
        "## Recommendation",
        "\n".join(f"- {escape(line)}" for line in sentences(advice)),
    ]
    if "fitted" in advice["curve"]:
        scores = _Scores(advice["metric"])
        rows = [[f"{p['rows']:,}", scores.one(p["score"]), scores.spread(p)] for p in advice["curve"]["fitted"]]
        title = f"## Learning curve of {advice['curve']['method']}, fitted and continued"
        parts[5:5] = [title, markdown_table(["training labels", header[1], "90 % band"], rows, [True] * 3)]
    return "\n\n".join(parts) + "\n"


def html(advice: Mapping[str, Any]) -> str:
    """Return the page as one HTML file."""
    header, body, numeric = methods_table(advice)
    return page.render(
        _TEMPLATE, advice=advice, table_of_methods=PageTable(header, body, numeric, has_row_names=True),
        notes=notes(advice), rule=RULE, sentences=sentences(advice), figures=_figures(advice),
    )  # fmt: skip


def _figures(advice: Mapping[str, Any]) -> list[Markup]:
    scores = _Scores(advice["metric"])
    intervals = [
        IntervalRow(row["method"], scores.scale * row["score"], *_scaled(row, scores)) for row in advice["methods"]
    ]
    figures = [charts.interval_chart(f"{scores.metric} on held-out rows", intervals)]
    if "fitted" in advice["curve"]:
        figures.append(_curve_chart(advice["curve"], scores))
    return figures


def _curve_chart(curve: Mapping[str, Any], scores: _Scores) -> Markup:
    measured: dict[int, list[float]] = {}
    for point in curve["points"]:
        measured.setdefault(point["rows"], []).append(scores.scale * point["score"])
    means = [
        ChartPoint(rows, sum(values) / len(values), f"{rows:,} labels: mean {sum(values) / len(values):.2f}")
        for rows, values in sorted(measured.items())
    ]
    fitted = [_fitted_point(point, scores) for point in curve["fitted"]]
    lines = [
        ChartLine("measured", Marker.of(0), means),
        ChartLine("fitted", Marker.of(1), fitted, is_dashed=True),
    ]
    title = f"Learning curve of {curve['method']}, with the 90 % band of the fit"
    return charts.line_chart(title, "training labels", scores.metric, lines, may_be_log=True)


def _fitted_point(point: Mapping[str, Any], scores: _Scores) -> ChartPoint:
    low, high = _scaled(point, scores)
    text = f"{point['rows']:,} labels: {scores.one(point['score'])} ({scores.spread(point)})"
    return ChartPoint(point["rows"], scores.scale * point["score"], text, low, high)


def _scaled(item: Mapping[str, Any], scores: _Scores) -> Sequence[float | None]:
    return [None if item[end] is None else scores.scale * item[end] for end in ("low", "high")]
