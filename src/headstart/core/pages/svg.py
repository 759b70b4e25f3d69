"""The parts of a picture: escaped SVG elements, scales, ticks, markers, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

COLORS = 10
"""Number of colors in `picture.css`: the classes c0 to c9."""
_SHAPES = 3
FONT_SIZE = 12
_LETTER_WIDTH = 0.6 * FONT_SIZE
LABEL_GAP = FONT_SIZE + 2
"""Smallest distance between the baselines of two labels."""
Attribute = str | float | None


@cache
def picture_style() -> Markup:
    """Return the rules for colors and pictures, which an SVG file contains as well as a page."""
    return Markup(Path(__file__).with_name("picture.css").read_text(encoding="utf-8"))


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Return an element; attribute values and children are escaped unless they are `Markup`.

    In attribute names, underscores become hyphens and a final underscore is dropped: `class_`, `text_anchor`.
    Attributes that are None are left out.
    """
    pairs = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _text(value))
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(pairs), Markup("").join(map(escape, children)))


def _text(value: str | float) -> str:
    """Write a number with at most one decimal; SVG units are about a pixel."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def coordinates(pairs: Iterable[tuple[float, float]]) -> str:
    """Return coordinates as the `points` attribute of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def text_width(text: str) -> float:
    """Estimate the width of a text in the font of the pictures."""
    return _LETTER_WIDTH * len(text)


@dataclass(frozen=True)
class Marker:
    """Color and shape of one series; after the last color, the colors start again with the next shape."""

    color: str
    shape: int

    @classmethod
    def of(cls, index: int) -> Marker:
        """Return the marker of the series with this index."""
        return cls(f"c{index % COLORS}", index // COLORS % _SHAPES)

    def draw(self, x: float, y: float, size: float, **attributes: Attribute) -> Markup:
        """Draw a circle, a square or a diamond."""
        attributes = {"class_": f"dot {self.color}", **attributes}
        if self.shape == 0:
            return element("circle", cx=x, cy=y, r=size, **attributes)
        if self.shape == 1:
            return element("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, **attributes)
        far = 1.4 * size
        corners = coordinates([(x, y - far), (x + far, y), (x, y + far), (x - far, y)])
        return element("polygon", points=corners, **attributes)


@dataclass(frozen=True)
class AxisScale:
    """Maps numbers to positions along one side of a picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, is_log: bool = False) -> AxisScale:
        """Return a scale that contains all values and some room on both sides."""
        low, high = min(values), max(values)
        if is_log:
            room = (high / low) ** 0.04
            return cls(low / room, high * room, start, end, is_log=True)
        room = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        """Return the position of a number."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        fraction = 0.5 if high == low else (value - low) / (high - low)
        return self.start + fraction * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers inside the scale, at most seven."""
        if self.is_log:
            return self._log_ticks()
        rough = (self.high - self.low) / 6
        size = 10 ** math.floor(math.log10(rough))
        step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(number * step, 10) for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors, step in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 5)):
            ticks = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= 6:
                break
        return ticks


def spans_decades(values: Sequence[float]) -> bool:
    """Return True if all values are positive and the largest is at least ten times the smallest."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 10


def format_number(value: float) -> str:
    """Return a number as a tick label: `0.25`, `1,000`, `2e12`."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.10g}" if value == round(value, 3) else f"{value:,.3g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


@dataclass(frozen=True)
class Label:
    """A text beside a dot; `x` and `y` are the start or, with `ends` set, the end of its baseline."""

    text: str
    x: float
    y: float
    ends: bool = False
    color: str = ""
    """Class of the color of its line; without one, the color of all other text."""

    @property
    def sides(self) -> tuple[float, float]:
        """Return its left and right edge."""
        width = text_width(self.text)
        return (self.x - width, self.x) if self.ends else (self.x, self.x + width)

    def collides(self, other: Label) -> bool:
        """Return True if the two overlap horizontally, so that they need different heights."""
        return self.sides[0] < other.sides[1] and other.sides[0] < self.sides[1]


def nudge(labels: Sequence[Label], top: float, bottom: float) -> list[Label]:
    """Return the labels, in their order, moved vertically so that none covers another.

    Algorithm: from top to bottom, each label moves below those above it. From the bottom up, labels that left the
    picture move back above those below them.
    """
    order = sorted(range(len(labels)), key=lambda index: labels[index].y)
    placed = list(labels)
    for rank, index in enumerate(order):
        above = [placed[other].y for other in order[:rank] if placed[other].collides(placed[index])]
        placed[index] = replace(placed[index], y=max([placed[index].y, top, *(y + LABEL_GAP for y in above)]))
    for rank, index in reversed(list(enumerate(order))):
        below = [placed[other].y for other in order[rank + 1 :] if placed[other].collides(placed[index])]
        placed[index] = replace(placed[index], y=min([placed[index].y, bottom, *(y - LABEL_GAP for y in below)]))
    return placed
