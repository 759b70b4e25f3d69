"""Cells of files that a spreadsheet may open."""

from __future__ import annotations

import re
from typing import Any

_FORMULA = re.compile(r"[=+\-@\t\r]")
"""How a cell starts that a spreadsheet would run as a formula."""
_SCORE = re.compile(r"[+-]?[\d.,]+( ± [\d.,]+)?")


def cell(value: Any) -> Any:
    """Return a value for CSV; text that a spreadsheet would run as a formula starts with an apostrophe."""
    if isinstance(value, str) and _FORMULA.match(value) and not _SCORE.fullmatch(value):
        return f"'{value}"
    return "" if value is None else value
