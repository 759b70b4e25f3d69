"""Write the page of errors as HTML, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstart.core.artifact import Staging
from headstart.core.pages.markdown import Markdown, code, escape, markdown_table
from headstart.core.pages.page import PageTable, render
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable, sections, summary
from headstart.evaluation.report.facts import Evaluation

NAME = "evaluation"
_TEMPLATE = Path(__file__).with_name("page.html.j2")


def write(facts: Evaluation, folder: Path | Staging) -> Path:
    """Write `evaluation.html`, `evaluation.md` and `evaluation.json` into a folder; return the path of the HTML."""
    for suffix, text in (("html", as_html(facts)), ("md", as_markdown(facts)), ("json", as_json(facts))):
        # A lone surrogate in a label cannot be written as UTF-8.
        (folder / f"{NAME}.{suffix}").write_bytes(text.encode("utf-8", "replace"))
    return folder / f"{NAME}.html"


def as_html(facts: Evaluation) -> str:
    """Return the page as HTML that needs no other file and no script."""
    return render(_TEMPLATE, facts=facts, summary=summary(facts), sections=sections(facts), page_table=page_table)


def as_markdown(facts: Evaluation) -> str:
    """Return the page as Markdown; text from the data is in code spans."""
    parts = [f"# Evaluation of {code(facts.model)}", f"Data: {code(facts.data)}, {facts.rows:,} rows."]
    parts.append("\n".join(f"- {escape(line)}" for line in summary(facts)))
    for section in sections(facts):
        parts += _markdown_section(section)
    return "\n\n".join(parts) + "\n"


def as_json(facts: Evaluation) -> str:
    """Return the facts as JSON at full precision; what is not defined is null."""
    return json.dumps(plain_json(asdict(facts)), ensure_ascii=False, indent=1) + "\n"


def plain_json(value: Any) -> Any:
    """Return a value whose numbers JSON can hold: NaN and infinities become None."""
    if isinstance(value, dict):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _markdown_section(section: ReportSection) -> list[str]:
    parts = [f"## {escape(section.title)}", *(str(escape(note)) for note in section.notes)]
    for table in section.tables:
        parts += [f"{_shown(table.caption)}:", _markdown_table(table.header, table.rows, table.numeric)]
    if section.rows:
        header = [*dict.fromkeys(name for row in section.rows for name in row.facts), "text"]
        body = [[*(row.facts.get(name, "") for name in header[:-1]), Quoted(row.text)] for row in section.rows]
        parts += [f"{section.rows_caption}:", _markdown_table(header, body, ())]
    return parts


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    return markdown_table([_shown(name) for name in header], [[_shown(cell) for cell in row] for row in rows], numeric)


def _shown(text: str) -> Markdown:
    return code(text) if isinstance(text, Quoted) else escape(text)


def page_table(table: ReportTable) -> PageTable:
    """Return a table of a section in the form that pages draw."""
    return PageTable(table.header, table.rows, table.numeric, caption=table.caption, has_row_names=True)
