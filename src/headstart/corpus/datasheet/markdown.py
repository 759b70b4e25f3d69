"""DATASHEET.md: the facts of a corpus as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from headstart.core.pages.markdown import escape, markdown_table
from headstart.corpus.datasheet import tables
from headstart.corpus.datasheet.questions import QUESTIONS

_SHOWN = 15


def render(facts: Mapping[str, Any]) -> str:
    """Return the datasheet as Markdown."""
    train, validation = facts["splits"]["train"], facts["splits"]["validation"]
    parts = [
        f"# Datasheet: {escape(facts['title'])}",
        f"{train['documents']:,} documents and {train['characters']:,} characters for training, "
        f"{validation['documents']:,} documents for validation. Every figure was counted in the corpus itself. "
        "Questions that only a person can answer are named blanks; fill them in the recipe under `answers`.",
        *_questions(facts, "Motivation"),
        "## Sources",
        _table(tables.sources(facts)),
        "## Steps",
        "![What each step kept and removed](waterfall.svg)",
        "Rows in = rows out + dropped by rule + duplicates + rejects, at every step.",
        _table(tables.steps(facts)),
        *_questions(facts, "Composition"),
        "### Languages",
        _counts("language", facts["languages"]),
        "### Lengths",
        _counts("characters, from", facts["lengths"]),
        *(["### Domains", _counts("domain", facts["domains"])] if facts["domains"] else []),
        "### Personal data found and replaced",
        _counts("kind", facts["personal"]) or "None was found, or the step was off.",
        "### Evaluation sets",
        _table(tables.sets(facts)) if facts["sets"] else "No evaluation sets were searched for.",
        "### Duplicates",
        _table(tables.clusters(facts)) if facts["clusters"] else "None were found, or the step was off.",
        *_questions(facts, "Collection"),
        "## Samples",
        "### Kept",
        *(_quote(f"{sample['source']}, {sample['id']}", sample["text"]) for sample in facts["samples"]["kept"]),
        "### Dropped, by rule",
        *(
            _quote(f"{rule}: {sample['source']}, {sample['id']}", sample["text"])
            for rule, samples in facts["samples"]["dropped"].items()
            for sample in samples
        ),
        *(["## Token shards", _table(tables.shards(facts))] if facts["shards"] else []),
        *_questions(facts, "Uses"),
        *_questions(facts, "Distribution"),
        *_questions(facts, "Maintenance"),
        "## Recipe",
        "```yaml\n" + yaml.safe_dump(facts["recipe"], sort_keys=False, allow_unicode=True) + "```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _questions(facts: Mapping[str, Any], section: str) -> list[str]:
    lines = []
    for name, question in QUESTIONS[section].items():
        answer = facts["answers"].get(name)
        lines.append(f"**{question}** {answer or f'`[blank: {name}]`'}")
    return [f"## {section}", *lines]


def _table(table: tables.FactTable) -> str:
    return markdown_table(table.header, table.texts(), table.numeric)


def _counts(name: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    shown = list(counts.items())[:_SHOWN]
    more = f"\n\nand {len(counts) - len(shown):,} more" if len(counts) > len(shown) else ""
    return _table(tables.FactTable((name, "count"), [*shown])) + more


def _quote(title: str, text: str) -> str:
    body = "\n".join(f"> {escape(line)}".rstrip() for line in text.splitlines())
    return f"**{escape(title)}**\n\n{body}"
