"""The report of a study as one HTML file that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from headstart.core.pages.page import PageTable, render
from headstart.studies.judge.tables import StudyTable
from headstart.studies.judge.verdicts import Verdict

_TEMPLATE = Path(__file__).with_name("report.html.j2")


@dataclass(frozen=True)
class Sheet:
    """A table of the page and its title."""

    title: str
    content: PageTable

    @classmethod
    def of(cls, table: StudyTable, title: str | None = None) -> Sheet:
        """Return a table without its empty columns; rows of unfinished cells are gray."""
        texts = table.texts()
        used = [index for index in range(len(table.columns)) if any(row[index] not in (None, "") for row in table.rows)]
        content = PageTable(
            [table.columns[index].name for index in used],
            [[row[index] for index in used] for row in texts],
            [table.columns[index].is_number for index in used],
            table.unfinished,
        )
        return cls(table.title if title is None else title, content)


@dataclass(frozen=True)
class PageSection:
    """A section of the page: a title, then pictures, then tables."""

    title: str
    figures: Sequence[Markup] = ()
    tables: Sequence[Sheet] = ()


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    question: str
    verdicts: Sequence[Verdict]
    summary: Sequence[str]
    sections: Sequence[PageSection] = ()
    tables: Sequence[Sheet] = ()
    recipes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def render_report(report: Report) -> str:
    """Return the page as HTML."""
    return render(_TEMPLATE, report=report)
