"""Pictures for the datasheet, as plain SVG: a waterfall of what each step took, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _ROW, _LABEL, _NUMBERS = 860, 30, 190, 250
_KEPT, _GONE = "#2a6f97", "#d98b5f"


def waterfall(books: Sequence[Mapping[str, Any]]) -> str:
    """Draw the share of characters that is left after each step, and what that step took."""
    whole = max((step["characters_in"] for step in books), default=0) or 1
    room = _WIDTH - _LABEL - _NUMBERS
    rows = []
    for number, step in enumerate(books):
        top = number * _ROW
        left, took = step["characters_out"] / whole, (step["characters_in"] - step["characters_out"]) / whole
        told = (
            f"{step['rows_in']:,} → {step['rows_out']:,} rows, {left:.1%} of characters"
            if step["rows_in"] != step["rows_out"]
            else f"{step['rows_out']:,} rows, {left:.1%} of characters"
        )
        edge = _LABEL + room * left
        rows.append(
            f'<text x="{_LABEL - 10}" y="{top + 20}" text-anchor="end">{escape(step["step"])}</text>'
            f'<rect x="{_LABEL}" y="{top + 5}" width="{room * left:.1f}" height="20" fill="{_KEPT}"/>'
            f'<rect x="{edge:.1f}" y="{top + 5}" width="{max(room * took, 0):.1f}" height="20" fill="{_GONE}"/>'
            f'<text x="{_WIDTH - _NUMBERS + 10}" y="{top + 20}" font-size="11">{escape(told)}</text>'
        )
    return _svg(len(books) * _ROW, "".join(rows), "What each step left and took")


def bars(counts: Mapping[str, int], title: str) -> str:
    """Draw a bar for each count."""
    most = max(counts.values(), default=0) or 1
    room = _WIDTH - _LABEL - 120
    rows = []
    for number, (name, count) in enumerate(counts.items()):
        top = number * _ROW
        rows.append(
            f'<text x="{_LABEL - 10}" y="{top + 20}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{top + 5}" width="{max(1.0, room * count / most):.1f}" height="20" fill="{_KEPT}"/>'
            f'<text x="{_LABEL + max(1.0, room * count / most) + 8:.1f}" y="{top + 20}">{count:,}</text>'
        )
    return _svg(len(counts) * _ROW, "".join(rows), title)


def _svg(height: int, inside: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#333"><title>{escape(title)}</title>{inside}</svg>\n'
    )
