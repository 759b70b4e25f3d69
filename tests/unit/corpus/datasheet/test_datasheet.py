"""The datasheet as a page, as Markdown and as a picture: every value is escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from headstart.core.pages import charts
from headstart.corpus.datasheet import markdown, page, tables
from headstart.corpus.datasheet.questions import QUESTIONS

HOSTILE = "<img src=x onerror=alert(1)>|`"
STEP = {"counts": {}, "characters_in": 1000, "characters_out": 900}


@pytest.fixture
def facts() -> dict[str, Any]:
    source = {
        "name": HOSTILE, "files": 2, "bytes": 1000, "license": None, "rows": 20, "rejects": 1, "characters": 1000,
        "characters_kept": 800, "hashes": [], "files_passed_over": 1, "passed_over": ["LICENSE"],
    }  # fmt: skip
    steps = [
        {**STEP, "step": "read", "rows_in": 21, "rows_out": 20, "dropped": {"rejects": 1}},
        {**STEP, "step": "duplicates", "rows_in": 20, "rows_out": 18, "dropped": {"duplicates.exact": 2}},
    ]
    sample = {"id": HOSTILE, "source": "wiki", "text": f"{HOSTILE}\nSecond line."}
    return {
        "title": HOSTILE, "answers": {"motivation.purpose": "To <b>test</b> it."}, "sources": [source], "books": steps,
        "splits": {"train": {"documents": 17, "characters": 750}, "validation": {"documents": 1, "characters": 50}},
        "languages": {"en": 18}, "lengths": {"8": 3, "16": 15}, "domains": {f"{n}.example": 20 - n for n in range(20)},
        "personal": {}, "sets": [{"set": "quiz", "items": 3, "too_short": 1, "items_found": 1, "documents": 1}],
        "clusters": [], "samples": {"kept": [sample], "dropped": {"gopher.short": [sample]}}, "shards": {},
        "recipe": {"title": HOSTILE},
    }  # fmt: skip


def test_the_page_is_complete_in_one_file_and_escaped(facts):
    html = page.render(facts)
    assert "<img" not in html and "To &lt;b&gt;test&lt;/b&gt; it." in html
    assert not re.search(r"<script|<link|https?:", html) and "prefers-color-scheme: dark" in html
    assert html.count("<svg") == 4, "the waterfall, languages, lengths and domains; no personal data was found"
    assert re.findall(r'href="#(\w+)"', html) == re.findall(r'<section id="(\w+)"', html)
    assert "<b>17</b>training documents" in html and "<b>2</b>duplicates" in html


def test_every_question_is_answered_or_a_blank(facts):
    html = page.render(facts)
    names = [name for section in QUESTIONS.values() for name in section]
    assert re.findall(r"blank: ([\w.]+)", html) == [name for name in names if name not in facts["answers"]]


def test_only_the_most_frequent_domains_are_drawn(facts):
    html = page.render(facts)
    assert "14.example" in html and "15.example" not in html


def test_markdown_tables_and_samples_are_escaped(facts):
    text = markdown.render(facts)
    assert not re.search(r"(?<!\\)<img", text.partition("```yaml")[0])
    (row,) = [line for line in text.splitlines() if line.startswith("| \\<img")]
    header = next(line for line in text.splitlines() if line.startswith("| source |"))
    assert row.replace(r"\|", "").count("|") == header.count("|")
    assert "| not given | 2 | 1 | 1,000 | 20 | 1 | 1,000 | 800 |" in row
    assert "> Second line." in text and "`[blank: uses.unfit]`" in text and "and 5 more" in text


def test_the_waterfall_is_a_picture_of_its_own(facts):
    root = ET.fromstring(charts.standalone(page.waterfall(facts["books"])))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        "read", "21 → 20 rows, 90.0% of characters", "duplicates", "20 → 18 rows, 90.0% of characters"
    ]  # fmt: skip


def test_a_table_knows_its_numeric_columns(facts):
    table = tables.steps(facts)
    assert table.numeric == [False, True, True, True, False]
    assert table.texts()[0] == ["read", "21", "20", "900", "rejects 1"]
