"""datasheet.html: the same facts as one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from headstart.corpus.datasheet import tables
from headstart.corpus.datasheet.charts import bars, waterfall
from headstart.corpus.datasheet.questions import QUESTIONS

_SHOWN = 15
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fafaf8; margin: 0 auto; max-width: 60rem;
  padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
h3 { margin-bottom: .3rem }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0 }
.figures div { background: #fff; border: 1px solid #e3e3df; border-radius: 8px; padding: .6rem 1rem; min-width: 8rem }
.figures b { display: block; font-size: 1.4rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e3e3df; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
blockquote { margin: .3rem 0 1rem; padding: .5rem 1rem; background: #fff; border-left: 3px solid #2a6f97;
  white-space: pre-wrap; font-size: .85rem; overflow-wrap: anywhere }
blockquote.dropped { border-color: #d98b5f }
.blank { background: #fff3c4; padding: .1rem .4rem; border-radius: 4px; font-family: monospace; font-size: .85rem }
nav { display: flex; flex-wrap: wrap; gap: .2rem .8rem } code { overflow-wrap: anywhere }
.wide td:last-child:not(.number) { min-width: 24rem }
@media (prefers-color-scheme: dark) { body { background: #16181a; color: #ddd }
  svg { filter: invert(.88) hue-rotate(180deg) }
  .figures div, blockquote { background: #1f2225; border-color: #333 } th, td, h2 { border-color: #333 }
  .blank { background: #5b4a12 } a { color: #8ab8d8 } }
"""


def render(facts: Mapping[str, Any]) -> str:
    """Write the page."""
    samples = facts["samples"]
    body = [
        f"<h1>{escape(facts['title'])}</h1><p>A datasheet, counted in the corpus itself.</p>",
        "<nav>" + "".join(f'<a href="#{name.lower()}">{name}</a>' for name in _SECTIONS) + "</nav>",
        '<div class="figures">',
        *(f"<div><b>{number:,}</b>{name}</div>" for name, number in _figures(facts).items()),
        "</div>",
        _section("Steps", waterfall(facts["books"]), _table(tables.steps(facts))),
        _section("Sources", _table(tables.sources(facts))),
        _section(
            "Composition",
            "<h3>Languages</h3>",
            _bars(facts["languages"], "Documents by language"),
            "<h3>Lengths, in characters from</h3>",
            bars(facts["lengths"], "Documents by length"),
            *(["<h3>Domains</h3>", _bars(facts["domains"], "Documents by domain")] if facts["domains"] else []),
            "<h3>Personal data found and replaced</h3>",
            _bars(facts["personal"], "Personal data"),
            "<h3>Evaluation sets</h3>",
            _table(tables.sets(facts)),
            "<h3>Largest groups of duplicates</h3>",
            _table(tables.clusters(facts)),
            *(["<h3>Token shards</h3>", _table(tables.shards(facts))] if facts["shards"] else []),
        ),
        _section(
            "Samples",
            "<h3>Kept</h3>",
            *(_quoted(f"{s['source']}, {s['id']}", s["text"]) for s in samples["kept"]),
            "<h3>Dropped, by rule</h3>",
            *(
                _quoted(f"{rule}: {s['source']}, {s['id']}", s["text"], "dropped")
                for rule, shown in samples["dropped"].items()
                for s in shown
            ),
        ),
        _section("Questions", *(_asked(facts, section) for section in QUESTIONS)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Datasheet: {escape(facts['title'])}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


_SECTIONS = ("Steps", "Sources", "Composition", "Samples", "Questions")


def _figures(facts: Mapping[str, Any]) -> dict[str, int]:
    books, splits = facts["books"], facts["splits"]
    return {
        "documents to train on": splits["train"]["documents"],
        "characters": splits["train"]["characters"],
        "documents held out": splits["validation"]["documents"],
        "rows read": books[0]["rows_in"],
        "rejects": books[0]["dropped"].get("rejects", 0),
        "duplicates": sum(n for b in books for rule, n in b["dropped"].items() if rule.startswith("duplicates")),
    }


def _section(name: str, *inside: str) -> str:
    return f'<section id="{name.lower()}"><h2>{name}</h2>{"".join(inside)}</section>'


def _bars(counts: Mapping[str, int], title: str) -> str:
    return bars(dict(list(counts.items())[:_SHOWN]), title) if counts else "<p>None.</p>"


def _table(table: tables.Table) -> str:
    head, rows = table
    if not rows:
        return "<p>None.</p>"
    cells = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{"".join(f"<th>{escape(h)}</th>" for h in head)}</tr>{cells}</table></div>'


def _cell(value: Any) -> str:
    return f'<td class="number">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"


def _quoted(title: str, text: str, kind: str = "") -> str:
    return f'<p><b>{escape(title)}</b></p><blockquote class="{kind}">{escape(text)}</blockquote>'


def _asked(facts: Mapping[str, Any], section: str) -> str:
    lines = [f"<h3>{section}</h3>"]
    for name, question in QUESTIONS[section].items():
        answer = facts["answers"].get(name)
        told = escape(answer) if answer else f'<span class="blank">blank: {name}</span>'
        lines.append(f"<p><b>{escape(question)}</b> {told}</p>")
    return "".join(lines)
