"""The report of a study: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from headstart.studies.judge.tables import Table
from headstart.studies.judge.verdicts import Verdict
from headstart.studies.render.theme import SCRIPT, STYLE

_LONG = 40
"""Letters of a cell from which on it is wrapped."""


@dataclass
class Report:
    """Everything that the page shows."""

    question: str
    verdicts: Sequence[Verdict]
    summary: list[str]
    figures: list[tuple[str, list[str]]] = field(default_factory=list)
    """Titles of sections, and the pictures and tables in them as HTML."""
    tables: list[Table] = field(default_factory=list)
    recipes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def render(report: Report) -> str:
    """Write the page."""
    sections = [(title, "".join(inside)) for title, inside in report.figures if inside]
    sections += [(one.title, table(one)) for one in report.tables if one.rows]
    recipes = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in report.recipes.items()
    )
    sections.append(("Recipes, every default filled in", recipes))
    made = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    sections.append(("Versions", f"<p>Made with {escape(made)}.</p>"))
    contents = "".join(f'<a href="#s{place}">{escape(title)}</a>' for place, (title, _) in enumerate(sections))
    body = "".join(
        f'<section id="s{place}"><h2>{escape(title)}</h2>{inside}</section>'
        for place, (title, inside) in enumerate(sections)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.question)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escape(report.question)}</h1>{''.join(map(_verdict, report.verdicts))}"
        f"{_list(report.summary)}</header><nav>{contents}</nav>{body}"
        f'<div id="hover" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def table(made: Table, heading: str = "") -> str:
    """Return a table as HTML that scrolls sideways where a screen is narrow; unfinished rows are grey."""
    used = [place for place in range(len(made.columns)) if any(row[place] not in (None, "") for row in made.rows)]
    head = "".join(f"<th{_kind(made, place)}>{escape(made.columns[place].name)}</th>" for place in used)
    rows = "".join(
        ('<tr class="unfinished">' if grey else "<tr>")
        + "".join(f"<td{_kind(made, place, row[place])}>{escape(row[place])}</td>" for place in used)
        + "</tr>"
        for row, grey in zip(made.texts(), made.unfinished, strict=True)
    )
    title = f"<h3>{escape(heading)}</h3>" if heading else ""
    return f'{title}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _kind(made: Table, place: int, text: str = "") -> str:
    """Say what a cell holds, so that sentences are wrapped and nothing else is."""
    kind = "number" if made.columns[place].is_number else "long" if len(text) > _LONG else ""
    return f' class="{kind}"' if kind else ""


def _verdict(verdict: Verdict) -> str:
    return f'<p class="verdict {verdict.word}"><b>{verdict.word}</b> {escape(verdict.sentence())}</p>'


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(said)}</li>' for said in sentences)}</ul>" if sentences else ""
