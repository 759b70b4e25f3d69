"""Pictures of a study as plain SVG: every dot says on hover which cell it is; colours follow the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from headstart.studies.judge.curves import Curve, Placed

WIDTH, HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 52
COLOURS = 10
"""Colours of the page's theme, by the classes c0 to c9."""
_SHAPES = 3


@dataclass(frozen=True)
class Scale:
    """Numbers to places along one side of a picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a number."""
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.is_log else (
            self.low, self.high, value,
        )  # fmt: skip
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Look:
    """Colour and shape of one system; where colours are used up, the next shape begins."""

    colour: str
    shape: int

    @classmethod
    def of(cls, place: int) -> Look:
        """Return the looks of the system in this place."""
        return cls(f"c{place % COLOURS}", place // COLOURS % _SHAPES)

    def drawn(self, x: float, y: float, size: float, attributes: str = "", inside: str = "") -> str:
        """Draw a circle, a square or a diamond."""
        if self.shape == 0:
            form = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
        elif self.shape == 1:
            form = f'rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}"'
        else:
            far = 1.4 * size
            corners = ((x, y - far), (x + far, y), (x, y + far), (x - far, y))
            form = f'polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"'
        return f'<{form} class="dot {self.colour}"{attributes}>{inside}</{form.partition(" ")[0]}>'


def lines(title: str, x_name: str, y_name: str, curves: Sequence[Curve], place: Callable[[str], int]) -> str:
    """Draw score over a number, with intervals; baselines are dashed."""
    dots = [dot for curve in curves for dot in curve.dots]
    xs = _scale([dot.x for dot in dots], _LEFT, WIDTH - _RIGHT, is_log=_spans([dot.x for dot in dots]))
    ends = [value for dot in dots for value in (dot.low, dot.high, dot.mean) if value is not None]
    ys = _scale(ends, HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(xs, ys, x_name, y_name, sorted({dot.x for dot in dots}))]
    for curve in curves:
        look = Look.of(place(curve.name))
        kind = look.colour + (" dashed" if curve.is_baseline else "")
        path = " ".join(f"{xs(dot.x):.1f},{ys(dot.mean):.1f}" for dot in curve.dots)
        parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        for dot in curve.dots:
            x = xs(dot.x)
            if dot.low is not None and dot.high is not None:
                whisker = f'<line class="whisker {kind}" x1="{x:.1f}" x2="{x:.1f}"'
                parts.append(f'{whisker} y1="{ys(dot.low):.1f}" y2="{ys(dot.high):.1f}"/>')
            parts.append(_dot(x, ys(dot.mean), look, dot.told))
    return _svg(title, parts)


def front(title: str, x_name: str, y_name: str, placed: Sequence[Placed], place: Callable[[str], int]) -> str:
    """Draw score against cost, and the front of what no cheaper one beats."""
    xs = _scale([one.cost for one in placed], _LEFT, WIDTH - _RIGHT, is_log=_spans([one.cost for one in placed]))
    ys = _scale([one.score for one in placed], HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(xs, ys, x_name, y_name)]
    steps = " ".join(f"{xs(one.cost):.1f},{ys(one.score):.1f}" for one in placed if one.on_front)
    parts.append(f'<polyline class="front" points="{steps}"/>')
    for one in placed:
        x, y = xs(one.cost), ys(one.score)
        parts.append(_dot(x, y, Look.of(place(one.name)), one.told, 6))
        if one.on_front:  # all of them would stand on each other
            parts.append(_label(x, y, one.name))
    return _svg(title, parts)


def traces(
    title: str, x_name: str, y_name: str, found: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    place: Callable[[str], int],
) -> str:  # fmt: skip
    """Draw what was logged over the course of training, a line for each name."""
    xs = _scale([x for _, dots in found for x, _ in dots], _LEFT, WIDTH - _RIGHT)
    ys = _scale([y for _, dots in found for _, y in dots], HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(xs, ys, x_name, y_name)]
    for name, dots in found:
        look = Look.of(place(name))
        path = " ".join(f"{xs(x):.1f},{ys(y):.1f}" for x, y in dots)
        parts.append(f'<polyline class="line {look.colour}" points="{path}"><title>{escape(name)}</title></polyline>')
        x, y = dots[-1]
        parts.append(_dot(xs(x), ys(y), look, f"{name}: {y:.3f} at {x:.3g} {x_name}"))
    return _svg(title, parts)


def legend(names: Sequence[tuple[str, bool]], place: Callable[[str], int]) -> str:
    """Return the names with their colours and shapes, as a list that wraps."""
    marks = []
    for name, is_baseline in names:
        look = Look.of(place(name))
        line = f'<line class="line {look.colour}{" dashed" * is_baseline}" x1="1" x2="25" y1="5" y2="5"/>'
        drawn = f'<svg viewBox="0 0 26 10" width="26" height="10" aria-hidden="true">{line}{look.drawn(13, 5, 4)}</svg>'
        marks.append(f"<li>{drawn}{escape(name)}</li>")
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _spans(values: Sequence[float]) -> bool:
    """Say whether numbers span so much that their logarithm reads better."""
    known = [value for value in values if value > 0]
    return len(known) == len(values) > 0 and max(known) / min(known) >= 10


def _scale(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Scale:
    low, high = min(values), max(values)
    if is_log:
        room = (high / low) ** 0.04
        return Scale(low / room, high * room, start, end, is_log=True)
    room = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    return Scale(low - room, high + room, start, end)


def _frame(xs: Scale, ys: Scale, x_name: str, y_name: str, marks: Sequence[float] = ()) -> Iterator[str]:
    """Yield grid, numbers and names of both sides."""
    for value in _ticks(ys):
        y = ys(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    for value in marks or _ticks(xs):
        x = xs(value)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{_number(value)}</text>'
    yield f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_name)}</text>'
    yield f'<text x="{_LEFT - 44}" y="{_TOP - 10}">{escape(y_name)}</text>'


def _ticks(scale: Scale) -> list[float]:
    if scale.is_log:
        first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
        if last > first:
            step = max(1, (last - first) // 5)
            return [10.0**power for power in range(first, last + 1, step)]
        return [scale.low * (scale.high / scale.low) ** (part / 4) for part in (0.5, 2, 3.5)]
    rough = (scale.high - scale.low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough)
    first = math.ceil(scale.low / step)
    return [round(place * step, 10) for place in range(first, math.floor(scale.high / step) + 1)]


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}" if value == round(value, 3) else f"{value:,.3g}"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _dot(x: float, y: float, look: Look, told: str, size: int = 4) -> str:
    said = escape(told, quote=True)
    return look.drawn(x, y, size, f' tabindex="0" data-cell="{said}"', f"<title>{said}</title>")


def _label(x: float, y: float, name: str) -> str:
    """Write a name beside its dot, on the side that has room."""
    side, anchor = (-9, "end") if x > WIDTH * 0.7 else (9, "start")
    return f'<text x="{x + side:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}">{escape(name)}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg></figure>'
    )
