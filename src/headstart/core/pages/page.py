"""Fill a template of a page. This is the only module that imports Jinja2, which takes time to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headstart.core.pages.svg import picture_style

_FOLDER = Path(__file__).parent
_WRAPPED_CHARACTERS = 40
"""Cells with more characters than this are wrapped; all others stay on one line."""


@dataclass(frozen=True)
class PageTable:
    """A table as text, for the macro `table` of `parts.html.j2`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    """Columns that are aligned right."""
    muted: Sequence[bool] = ()
    """Rows that are shown in gray, because they are not finished."""
    caption: str = ""
    has_row_names: bool = False
    """The first column names the rows; its cells are headers for screen readers."""

    def is_muted(self, row: int) -> bool:
        """Return True for a row that is shown in gray."""
        return bool(self.muted) and self.muted[row]

    def cell_class(self, column: int, text: str = "") -> str:
        """Return the CSS class of a cell."""
        if self.numeric[column]:
            return "number"
        return "long" if len(text) > _WRAPPED_CHARACTERS else ""


def render(template: Path, **values: Any) -> str:
    """Return the page that a template file makes of the values."""
    return _environment(template.parent).get_template(template.name).render(**values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["style"] = picture_style() + Markup((_FOLDER / "page.css").read_text(encoding="utf-8"))
    return environment
