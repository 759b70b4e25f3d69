"""The parts of the small pictures of the course: tokens in boxes, matrices, stacks of layers, bars, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from headstart.core.pages.svg import Attribute, AxisScale, coordinates, element, picture_style

WIDTH, HEIGHT = 240.0, 140.0
LEFT, RIGHT, TOP, BOTTOM = 10.0, WIDTH - 10, 32.0, HEIGHT - 24
STYLE = """
.paper { fill: var(--card); stroke: var(--rule) }
.box { fill: none; stroke: var(--faint) }
.on { fill: var(--kept); stroke: var(--card) } .off { fill: var(--rule); stroke: var(--faint) }
.bad { fill: var(--removed); stroke: var(--card) }
svg .small { font-size: 11px } svg .note { font-size: 11px; fill: var(--faint) } svg .inverse { fill: var(--card) }
.arrow { stroke: var(--ink); stroke-width: 1.3; fill: none } .head { fill: var(--ink) }
"""
FILLS = {".": "box", "#": "on", "-": "off", "x": "bad"}
"""What a letter of a pattern means: read, predicted or trained, hidden or frozen, wrong."""


def text(
    words: str, x: float, y: float, anchor: str | None = None, kind: str = "small", **attributes: Attribute
) -> Markup:
    """Return a text; `anchor` is start, middle or end."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=kind, **attributes)


def note(words: str) -> Markup:
    """Return the line under a picture."""
    return text(words, WIDTH / 2, HEIGHT - 9, "middle", "note")


def box(x: float, y: float, width: float, height: float, fill: str = ".", words: str = "") -> Markup:
    """Return a box with a text in its middle."""
    label = text(words, x + width / 2, y + height / 2 + 4, "middle", "small inverse" if fill in "#x" else "small")
    shape = element("rect", x=x, y=y, width=width, height=height, rx=2, class_=FILLS[fill])
    return shape + label if words else shape


def cells(words: Sequence[str], y: float, fills: str = "", x: float = LEFT, width: float = RIGHT - LEFT) -> Markup:
    """Return a row of boxes, one for each word; `fills` has a letter for each, a space for no box."""
    step = width / len(words)
    fills = fills or "." * len(words)
    boxes = [
        box(x + i * step + 1, y, step - 2, 20, fill, word)
        for i, (word, fill) in enumerate(zip(words, fills, strict=True))
        if fill != " "
    ]
    return Markup("").join(boxes)


def arrow(x1: float, y1: float, x2: float, y2: float) -> Markup:
    """Return a line with a head at its end."""
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    corners = [(x2, y2), (x2 - 6 * dx - 3 * dy, y2 - 6 * dy + 3 * dx), (x2 - 6 * dx + 3 * dy, y2 - 6 * dy - 3 * dx)]
    line = element("line", x1=x1, y1=y1, x2=x2 - 4 * dx, y2=y2 - 4 * dy, class_="arrow")
    return line + element("polygon", points=coordinates(corners), class_="head")


def matrix(rows: Sequence[str], x: float, y: float, size: float) -> Markup:
    """Return squares, one for each letter of each row."""
    squares = [
        element("rect", x=x + j * size, y=y + i * size, width=size - 1, height=size - 1, class_=FILLS[fill])
        for i, row in enumerate(rows)
        for j, fill in enumerate(row)
    ]
    return Markup("").join(squares)


def stack(fills: str, names: Sequence[str] = (), x: float = 80.0, width: float = 80.0, height: float = 84.0) -> Markup:
    """Return boxes on top of each other, the first letter at the bottom; names stand at their left."""
    step = height / len(fills)
    parts = []
    for i, fill in enumerate(fills):
        y = TOP + height - (i + 1) * step
        if fill != " ":
            parts.append(box(x, y + 1, width, step - 2, fill))
        if i < len(names) and names[i]:
            parts.append(text(names[i], x - 6, y + step / 2 + 4, "end"))
    return Markup("").join(parts)


def bars(values: Mapping[str, float], most: float, fills: str = "", digits: int = 1) -> Markup:
    """Return a bar with its name and value for each number."""
    start, step = 100.0, min(28.0, (BOTTOM - TOP) / len(values))
    parts = []
    for i, (name, value) in enumerate(values.items()):
        y = TOP + i * step
        parts += [
            text(name, start - 6, y + step / 2 + 4, "end"),
            box(start, y + 3, 90 * value / most, step - 6, (fills or "#" * len(values))[i]),
            text(f"{value:.{digits}f}", start + 90 * value / most + 5, y + step / 2 + 4),
        ]
    return Markup("").join(parts)


def curves(*lines: Sequence[tuple[float, float]], dashed: Sequence[int] = ()) -> Markup:
    """Return curves over common axes without ticks."""
    points = [point for line in lines for point in line]
    xs = AxisScale(min(x for x, _ in points), max(x for x, _ in points), LEFT + 14, RIGHT)
    ys = AxisScale(min(0.0, *(y for _, y in points)), max(y for _, y in points), BOTTOM, TOP + 4)
    axes = element("polyline", points=f"{LEFT + 14},{TOP} {LEFT + 14},{BOTTOM} {RIGHT},{BOTTOM}", class_="arrow")
    drawn = [
        element(
            "polyline",
            points=coordinates((xs(x), ys(y)) for x, y in line),
            class_=f"line c{i}" + (" dashed" if i in dashed else ""),
        )
        for i, line in enumerate(lines)
    ]
    return axes + Markup("").join(drawn)


def picture(title: str, parts: Sequence[Markup]) -> str:
    """Return an SVG file with its title, its colors for light and dark, and its parts."""
    paper = element("rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=4, class_="paper")
    heading = element("text", title, x=LEFT, y=19, class_="strong")
    drawing = element(
        "svg",
        element("style", picture_style() + Markup(STYLE)), paper, heading, *parts,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", width=WIDTH, role="img",
        aria_label=title,
    )  # fmt: skip
    return str(drawing) + "\n"
