"""datasheet.html: the facts of a corpus as one page that needs no other file, and their waterfall as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headstart.core.pages import charts, page
from headstart.core.pages.charts import WaterfallRow
from headstart.core.pages.page import PageTable
from headstart.corpus.datasheet import tables
from headstart.corpus.datasheet.questions import QUESTIONS
from headstart.corpus.datasheet.tables import FactTable

_TEMPLATE = Path(__file__).with_name("datasheet.html.j2")
_SHOWN = 15
_CHARTS = {
    "Documents by language": "languages",
    "Documents by length, in characters from": "lengths",
    "Documents by domain": "domains",
    "Personal data found and replaced": "personal",
}
"""Title of a chart → the key of its counts in the facts."""


def render(facts: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    return page.render(
        _TEMPLATE,
        facts=facts,
        totals=_totals(facts),
        waterfall=waterfall(facts["books"]),
        charts=_charts(facts),
        questions=QUESTIONS,
        steps=_page_table(tables.steps(facts)),
        sources=_page_table(tables.sources(facts)),
        sets=_page_table(tables.sets(facts)),
        clusters=_page_table(tables.clusters(facts)),
        shards=_page_table(tables.shards(facts)),
    )


def waterfall(counts: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a picture of the fraction of characters that each step kept and removed."""
    total = max((step["characters_in"] for step in counts), default=0) or 1
    rows = []
    for step in counts:
        left, removed = step["characters_out"] / total, (step["characters_in"] - step["characters_out"]) / total
        before = f"{step['rows_in']:,} → " if step["rows_in"] != step["rows_out"] else ""
        text = f"{before}{step['rows_out']:,} rows, {left:.1%} of characters"
        rows.append(WaterfallRow(step["step"], left, max(0.0, removed), text))
    return charts.waterfall("What each step kept and removed", rows)


def _charts(facts: Mapping[str, Any]) -> list[Markup]:
    """Return a bar chart of the most frequent values of each count that is not empty."""
    counts = {title: facts[key] for title, key in _CHARTS.items()}
    lengths = facts["lengths"]
    return [
        charts.bar_chart(title, values if values is lengths else dict(list(values.items())[:_SHOWN]))
        for title, values in counts.items()
        if values
    ]


def _totals(facts: Mapping[str, Any]) -> dict[str, int]:
    steps, splits = facts["books"], facts["splits"]
    return {
        "training documents": splits["train"]["documents"],
        "training characters": splits["train"]["characters"],
        "validation documents": splits["validation"]["documents"],
        "rows read": steps[0]["rows_in"],
        "rejects": steps[0]["dropped"].get("rejects", 0),
        "duplicates": sum(
            count for step in steps for rule, count in step["dropped"].items() if rule.startswith("duplicates")
        ),
    }


def _page_table(table: FactTable) -> PageTable:
    return PageTable(table.header, table.texts(), table.numeric)
