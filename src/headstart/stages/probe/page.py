"""Write the page and the numbers of the probes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.core.artifact import Staging
from headstart.core.pages.page import render
from headstart.evaluation.report.page import page_table, plain_json
from headstart.stages.probe import card
from headstart.stages.probe.probe import ProbeReport

HTML, JSON, CARD = "probe.html", "probe.json", "card.md"
_TEMPLATE = Path(__file__).with_name("page.html.j2")


def write(
    models: Sequence[str], reports: Mapping[str, ProbeReport], notes: Sequence[str], facts: dict[str, Any],
    folder: Staging,
) -> None:  # fmt: skip
    """Write `probe.html`, which needs no other file and no script, `probe.json` and `card.md` into a folder."""
    sections = [section for report in reports.values() for section in report.sections]
    html = render(_TEMPLATE, models=models, notes=notes, sections=sections, page_table=page_table)
    numbers = plain_json({**facts, "probes": {name: report.numbers for name, report in reports.items()}})
    texts = {
        HTML: html, JSON: json.dumps(numbers, ensure_ascii=False, indent=1) + "\n", CARD: card.section(reports, notes),
    }  # fmt: skip
    for name, text in texts.items():
        # A lone surrogate in a text cannot be written as UTF-8.
        (folder / name).write_bytes(text.encode("utf-8", "replace"))
