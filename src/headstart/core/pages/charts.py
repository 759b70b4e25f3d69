"""Charts as SVG: lines with intervals, scores against costs, bars. Colors and dark mode come from `picture.css`.

A dot describes itself while the pointer is on it or it has the focus: CSS shows its description, without a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headstart.core.errors import shorten
from headstart.core.pages.svg import (
    AxisScale,
    Label,
    Marker,
    coordinates,
    element,
    format_number,
    nudge,
    picture_style,
    spans_decades,
    text_width,
)  # fmt: skip

WIDTH, HEIGHT = 400.0, 306.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, WIDTH - 14, 30.0, HEIGHT - 62
_TICK_GAP = 8
_MOST_LABELED, _LONGEST_LABEL = 8, 16
"""Lines are labeled at their ends where they are few and their names short; the legend names them in any case."""
_BAR_ROW, _BAR = 26.0, 16.0
_STEP_ROW, _STEP = 38.0, 14.0
_LONGEST_NAME = 24
_LINK_ROW, _FAINTEST = 20.0, 0.05


@dataclass(frozen=True)
class ChartPoint:
    """A point of a chart: its place, the interval around `y`, and its description; without one no dot is drawn."""

    x: float
    y: float
    text: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChartLine:
    """One series of a line chart."""

    name: str
    marker: Marker
    points: Sequence[ChartPoint]
    is_dashed: bool = False


@dataclass(frozen=True)
class ParetoPoint:
    """One point of a cost chart; no cheaper point beats one that is on the front."""

    name: str
    marker: Marker
    point: ChartPoint
    is_on_front: bool


@dataclass(frozen=True)
class WaterfallRow:
    """One step of a waterfall: which fraction of the whole it left, which it removed, and a description."""

    name: str
    left: float
    removed: float
    text: str


@dataclass(frozen=True)
class IntervalRow:
    """One row of an interval chart: a name, a value and its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def line_chart(
    title: str,
    x_name: str,
    y_name: str,
    lines: Sequence[ChartLine],
    *,
    ticks: Sequence[float] = (),
    may_be_log: bool = False,
) -> Markup:
    """Return a figure with one line per series.

    `ticks` are the numbers on the x axis, by default round ones. With `may_be_log`, the x axis is logarithmic if its
    values differ by a factor of ten or more.
    """
    points = [point for line in lines for point in line.points]
    names = [line.name for line in lines]
    is_labeled = 1 < len(lines) <= _MOST_LABELED and max(map(len, names)) <= _LONGEST_LABEL
    right = _RIGHT - (max(map(text_width, names)) + 4 if is_labeled else 0)
    xs = _x_scale([point.x for point in points], right, may_be_log)
    ys = AxisScale.around(
        [value for point in points for value in (point.low, point.high, point.y) if value is not None], _BOTTOM, _TOP
    )
    parts = [*_axes(xs, ys, x_name, y_name, ticks)]
    for line in lines:
        parts += _draw_line(line, xs, ys)
    if is_labeled:
        labels = [
            Label(line.name, xs(line.points[-1].x) + 9, ys(line.points[-1].y) + 4, color=line.marker.color)
            for line in lines
        ]
        parts += map(_draw_label, nudge(labels, _TOP + 8, _BOTTOM))
    return _figure(title, parts)


def cost_chart(title: str, x_name: str, y_name: str, points: Sequence[ParetoPoint]) -> Markup:
    """Return a figure of scores against costs, with the front of the points that no cheaper one beats."""
    xs = _x_scale([each.point.x for each in points], _RIGHT)
    ys = AxisScale.around([each.point.y for each in points], _BOTTOM, _TOP)
    placed = [(each, xs(each.point.x), ys(each.point.y)) for each in sorted(points, key=lambda each: each.point.x)]
    front = [(each, x, y) for each, x, y in placed if each.is_on_front]
    parts = [*_axes(xs, ys, x_name, y_name)]
    parts.append(element("polyline", class_="front", points=coordinates((x, y) for _, x, y in front)))
    # Only the front is labeled: labels of all points would cover each other.
    labels = [_label_beside(shorten(each.name, _LONGEST_NAME), x, y) for each, x, y in front]
    parts += map(_draw_label, nudge(labels, _TOP, _BOTTOM))
    for each, x, y in placed:
        parts += _draw_dot(x, y, each.marker, each.point.text, size=5)
    return _figure(title, parts)


def bar_chart(title: str, counts: Mapping[str, int]) -> Markup:
    """Return a figure with one bar per count."""
    names = [shorten(name, _LONGEST_NAME) for name in counts]
    start = max(map(text_width, names), default=0) + 12
    widest = max((text_width(f"{count:,}") for count in counts.values()), default=0) + 12
    most = max(counts.values(), default=0) or 1
    parts = []
    for row, (name, count) in enumerate(zip(names, counts.values(), strict=True)):
        middle = row * _BAR_ROW + _BAR_ROW / 2
        length = max(1.0, (WIDTH - start - widest) * count / most)
        parts += [
            element("text", name, x=start - 8, y=middle + 4, text_anchor="end"),
            element("rect", class_="kept", x=start, y=middle - _BAR / 2, width=length, height=_BAR),
            element("text", f"{count:,}", x=start + length + 6, y=middle + 4),
        ]
    return _figure(title, parts, height=len(counts) * _BAR_ROW)


def interval_chart(title: str, rows: Sequence[IntervalRow]) -> Markup:
    """Return a figure with one line per row: a dot at its value and a whisker over its interval."""
    names = [shorten(row.name, _LONGEST_NAME) for row in rows]
    start, bottom = max(map(text_width, names), default=0) + 12, len(rows) * _BAR_ROW
    ends = [value for row in rows for value in (row.value, row.low, row.high) if value is not None]
    xs, marker = AxisScale.around(ends, start, WIDTH - 14), Marker.of(0)
    parts = []
    for value in xs.ticks():
        parts.append(element("line", class_="grid", x1=xs(value), x2=xs(value), y1=0, y2=bottom))
        parts.append(element("text", format_number(value), x=xs(value), y=bottom + 16, text_anchor="middle"))
    for row, name, middle in zip(rows, names, (_BAR_ROW * (i + 0.5) for i in range(len(rows))), strict=True):
        parts.append(element("text", name, x=start - 8, y=middle + 4, text_anchor="end"))
        if row.low is not None and row.high is not None:
            whisker = f"whisker {marker.color}"
            parts.append(element("line", class_=whisker, x1=xs(row.low), x2=xs(row.high), y1=middle, y2=middle))
        parts.append(marker.draw(xs(row.value), middle, 4))
    return _figure(title, parts, height=bottom + 24)


def waterfall(title: str, rows: Sequence[WaterfallRow]) -> Markup:
    """Return an SVG picture of what each step left and removed."""
    parts = []
    for index, row in enumerate(rows):
        top = index * _STEP_ROW
        parts += [
            element("text", row.name, x=0, y=top + 13, class_="strong"),
            element("text", row.text, x=WIDTH, y=top + 13, text_anchor="end"),
            element("rect", class_="kept", x=0, y=top + 19, width=WIDTH * row.left, height=_STEP),
            element("rect", class_="removed", x=WIDTH * row.left, y=top + 19, width=WIDTH * row.removed, height=_STEP),
        ]
    return _svg(title, parts, len(rows) * _STEP_ROW)


def link_chart(title: str, left: Sequence[str], right: Sequence[str], weights: Sequence[Sequence[float]]) -> Markup:
    """Return a figure with lines from the names on the left to those on the right.

    A line is as opaque as its weight, which is between 0 and 1. Lines of less than a twentieth are left out.
    """
    start, end = 0.42 * WIDTH, 0.58 * WIDTH
    parts = []
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight >= _FAINTEST:
                y1, y2 = (_LINK_ROW * (index + 0.5) for index in (i, j))
                opacity = f"{min(1.0, weight):.2f}"
                parts.append(element("line", class_="line c0", x1=start, x2=end, y1=y1, y2=y2, stroke_opacity=opacity))
    for names, x, anchor in ((left, start - 6, "end"), (right, end + 6, "start")):
        for i, name in enumerate(names):
            text = shorten(name, _LONGEST_NAME)
            parts.append(element("text", text, x=x, y=_LINK_ROW * (i + 0.5) + 4, text_anchor=anchor))
    return _figure(title, parts, height=_LINK_ROW * max(len(left), len(right), 1))


def legend(entries: Sequence[tuple[str, Marker, bool]]) -> Markup:
    """Return a list of names, each with its marker and with a dashed line where the third value is set."""
    items = []
    for name, marker, is_dashed in entries:
        line = element("line", class_=_line_class(marker, is_dashed), x1=1, x2=25, y1=5, y2=5)
        key = element("svg", line, marker.draw(13, 5, 4), viewBox="0 0 26 10", width=26, height=10, aria_hidden="true")
        items.append(element("li", key, name))
    return element("ul", *items, class_="legend")


def figures(charts: Sequence[Markup]) -> Markup:
    """Return charts side by side where the screen is wide enough."""
    return element("div", *charts, class_="figures")


def standalone(picture: Markup) -> str:
    """Return a picture as the text of an SVG file, with its style.

    It has a background, because a page may be dark where the system, which sets the colors of a picture, is light.
    """
    opening, bracket, content = picture.partition(">")
    root = Markup('<svg xmlns="http://www.w3.org/2000/svg" width="560" style="background: var(--card)"')
    opening = opening.replace("<svg", root, 1)
    return str(opening + bracket + element("style", picture_style()) + content) + "\n"


def _x_scale(values: Sequence[float], right: float, may_be_log: bool = True) -> AxisScale:
    return AxisScale.around(values, _LEFT, right, is_log=may_be_log and spans_decades(values))


def _axes(xs: AxisScale, ys: AxisScale, x_name: str, y_name: str, x_ticks: Sequence[float] = ()) -> Iterator[Markup]:
    """Yield grid lines, tick labels and the names of both axes; tick labels that would overlap are left out."""
    for value in ys.ticks():
        y = ys(value)
        yield element("line", class_="grid", x1=_LEFT, x2=xs.end, y1=y, y2=y)
        yield element("text", format_number(value), x=_LEFT - 7, y=y + 4, text_anchor="end")
    free_from = 0.0
    for value in x_ticks or xs.ticks():
        x, text = xs(value), format_number(value)
        yield element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=_BOTTOM)
        if x - text_width(text) / 2 >= free_from:
            yield element("text", text, x=x, y=_BOTTOM + 17, text_anchor="middle")
            free_from = x + text_width(text) / 2 + _TICK_GAP
    yield element("text", x_name, x=(_LEFT + xs.end) / 2, y=_BOTTOM + 35, text_anchor="middle")
    yield element("text", y_name, x=4, y=_TOP - 14)


def _draw_line(line: ChartLine, xs: AxisScale, ys: AxisScale) -> Iterator[Markup]:
    path = coordinates((xs(point.x), ys(point.y)) for point in line.points)
    yield element("polyline", class_=_line_class(line.marker, line.is_dashed), points=path)
    for point in line.points:
        x = xs(point.x)
        if point.low is not None and point.high is not None:
            whisker = f"whisker {line.marker.color}"
            yield element("line", class_=whisker, x1=x, x2=x, y1=ys(point.low), y2=ys(point.high))
        if point.text:
            yield from _draw_dot(x, ys(point.y), line.marker, point.text)


def _line_class(marker: Marker, is_dashed: bool) -> str:
    return f"line {marker.color}" + (" dashed" if is_dashed else "")


def _draw_dot(x: float, y: float, marker: Marker, text: str, size: float = 4) -> Iterator[Markup]:
    """Yield a dot and the description that is shown under the axis while the dot has the pointer or the focus."""
    yield marker.draw(x, y, size, tabindex="0", role="img", aria_label=text)
    yield element("text", text, class_="tip", x=WIDTH / 2, y=HEIGHT - 6, text_anchor="middle", aria_hidden="true")


def _label_beside(text: str, x: float, y: float) -> Label:
    """Return a label on the side of a dot that has room for it."""
    fits_right = x + 9 + text_width(text) <= _RIGHT
    return Label(text, x + 9, y - 6) if fits_right else Label(text, x - 9, y - 6, ends=True)


def _draw_label(label: Label) -> Markup:
    anchor = "end" if label.ends else None
    return element("text", label.text, class_=f"label {label.color}".strip(), x=label.x, y=label.y, text_anchor=anchor)


def _figure(title: str, parts: Sequence[Markup], height: float = HEIGHT) -> Markup:
    return element("figure", element("figcaption", title), _svg(title, parts, height))


def _svg(title: str, parts: Sequence[Markup], height: float) -> Markup:
    return element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=title)
