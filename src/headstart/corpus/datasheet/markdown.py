"""DATASHEET.md: the facts of a corpus as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from headstart.corpus.datasheet import tables
from headstart.corpus.datasheet.questions import QUESTIONS

_SHOWN = 15


def render(facts: Mapping[str, Any]) -> str:
    """Write the datasheet."""
    train, held_out = facts["splits"]["train"], facts["splits"]["validation"]
    parts = [
        f"# Datasheet: {facts['title']}",
        f"{train['documents']:,} documents and {train['characters']:,} characters to train on, "
        f"{held_out['documents']:,} documents held out. Every figure here was counted in the corpus itself; what only "
        "a person can say is left as a named blank, to be filled in the recipe under `answers`.",
        *_asked(facts, "Motivation"),
        "## Sources",
        _table(tables.sources(facts)),
        "## What each step did",
        "![What each step left and took](waterfall.svg)",
        "Rows in = rows out + dropped by rule + duplicates + rejects, at every step.",
        _table(tables.steps(facts)),
        *_asked(facts, "Composition"),
        "### Languages",
        _counted("language", facts["languages"]),
        "### Lengths",
        _counted("characters, from", facts["lengths"]),
        *(["### Domains", _counted("domain", facts["domains"])] if facts["domains"] else []),
        "### Personal data found and replaced",
        _counted("kind", facts["personal"]) or "None was found, or none was looked for.",
        "### Evaluation sets",
        _table(tables.sets(facts)) if facts["sets"] else "No evaluation sets were looked for.",
        "### Duplicates",
        _table(tables.clusters(facts)) if facts["clusters"] else "None were found, or none were looked for.",
        *_asked(facts, "Collection"),
        "## Samples",
        "### Kept",
        *(_quoted(f"{s['source']}, {s['id']}", s["text"]) for s in facts["samples"]["kept"]),
        "### Dropped, by rule",
        *(
            _quoted(f"{rule}: {s['source']}, {s['id']}", s["text"])
            for rule, shown in facts["samples"]["dropped"].items()
            for s in shown
        ),
        *(["## Token shards", _table(tables.shards(facts))] if facts["shards"] else []),
        *_asked(facts, "Uses"),
        *_asked(facts, "Distribution"),
        *_asked(facts, "Maintenance"),
        "## Recipe",
        "```yaml\n" + yaml.safe_dump(facts["recipe"], sort_keys=False, allow_unicode=True) + "```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _asked(facts: Mapping[str, Any], section: str) -> list[str]:
    lines = []
    for name, question in QUESTIONS[section].items():
        answer = facts["answers"].get(name)
        lines.append(f"**{question}** {answer if answer else f'`[blank: {name}]`'}")
    return [f"## {section}", *lines]


def _table(table: tables.Table) -> str:
    head, rows = table
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")


def _counted(name: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    shown = list(counts.items())[:_SHOWN]
    more = f"\n\nand {len(counts) - len(shown):,} more" if len(counts) > len(shown) else ""
    return _table(((name, "count"), list(shown))) + more


def _quoted(title: str, text: str) -> str:
    body = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
    return f"**{title}**\n\n{body}"
