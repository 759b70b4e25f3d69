"""The page of errors in its three formats."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from headstart.core.data import Examples
from headstart.evaluation.report import page
from headstart.evaluation.report.against import compare_models
from headstart.evaluation.report.content import sections
from headstart.evaluation.report.facts import Evaluation, evaluate_rows
from headstart.evaluation.report.predicted import Predicted

ATTACK = (
    "<script>alert(1)</script> `x` | [a](javascript:b) ![](http://e.org/p.png) <img src=x onerror=alert(2)> &lt;b&gt;"
)
LABELS = ["<b>bold</b>", "pipe | `tick`"]


class Tags(HTMLParser):
    """Collects the elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def facts() -> Evaluation:
    gold = [LABELS[i % 2] for i in range(40)]
    predicted = [LABELS[0] if i < 10 else LABELS[i % 2] for i in range(40)]
    scores = [{label: 0.9 if label == answer else 0.1 for label in LABELS} for answer in predicted]
    rows = Examples({"text": [f"{ATTACK} {i}" for i in range(40)]}, gold, "rows.csv")
    first = Predicted(rows, ["accuracy", "f1"], predicted, scores)
    second = Predicted(rows, ["accuracy", "f1"], gold[::-1], [])
    against = compare_models(first, second, "<i>other</i>")
    column = ("<u>source</u>", ["<em>web</em>" if i % 3 else None for i in range(40)])
    return evaluate_rows(first, "<s>model</s>", "data & more.csv", column, against)


def test_markup_in_texts_and_labels_is_shown_and_runs_nothing(facts):
    html = page.as_html(facts)
    found = Tags(html)
    allowed = {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "ul", "ol", "li", "nav", "a",
        "main", "section", "div", "figure", "figcaption", "svg", "line", "text", "circle", "polyline", "rect", "table",
        "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "blockquote", "details", "summary",
    }  # fmt: skip
    assert {tag for tag, _ in found.elements} <= allowed
    attributes = [(name, value) for _, given in found.elements for name, value in given.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("src", "style")]
    assert all(value.startswith("#") for name, value in attributes if name == "href")
    assert f"{ATTACK} 1" in found.text and LABELS[0] in found.text and LABELS[1] in found.text
    for text in ("<i>other</i>", "<u>source</u>", "<em>web</em>", "<s>model</s>"):
        assert text in found.text


def test_no_outside_resource(facts):
    assert not re.search(r"url\(|@import|<link|<script|<iframe|<img", page.as_html(facts))


def test_every_table_has_a_caption_and_headers(facts):
    html = page.as_html(facts)
    tables = re.findall(r"<table.*?</table>", html, re.S)
    assert len(tables) >= 7
    for table in tables:
        assert re.search(r"<caption>.+?</caption>", table, re.S) and '<th scope="col"' in table
        assert table.count('<th scope="row"') == len(re.findall(r"<tr", table)) - 1
    identifiers = re.findall(r'<section id="(\w+)">', html)
    assert re.findall(r'<a href="#(\w+)">', html) == identifiers


def test_markdown_keeps_texts_in_code_spans(facts):
    text = page.as_markdown(facts)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "<script>" not in outside and "javascript:" not in outside and "<img" not in outside
    assert not re.search(r"(?<!\\)<[a-z/]", outside)
    lines = text.splitlines()
    for start in (i for i, line in enumerate(lines) if re.fullmatch(r"\|[-:|]+\|", line)):
        columns = _columns(lines[start - 1])
        rows = list(_until_blank(lines[start + 1 :]))
        assert rows and all(_columns(row) == columns for row in rows)


def _columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def _until_blank(lines):
    for line in lines:
        if not line:
            return
        yield line


def test_the_three_formats_have_the_same_facts(facts, tmp_path):
    path = page.write(facts, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evaluation.html", "evaluation.json", "evaluation.md"]
    html, markdown = Tags(path.read_text()).text, (tmp_path / "evaluation.md").read_text()
    values = json.loads((tmp_path / "evaluation.json").read_text())
    plain = markdown.replace("\\|", "|")
    for section in sections(facts):
        for table in section.tables:
            for row in table.rows:
                assert all(cell in html and cell in plain for cell in row)
        for row in section.rows:
            assert row.text in html and row.text in plain
            assert all(value in html and value in plain for value in row.facts.values())
    assert values["errors"] == facts.errors == 5 and len(values["worst"]) == 5
    assert values["metrics"]["accuracy"] == {
        "value": 0.875, "low": facts.metrics["accuracy"].low, "high": facts.metrics["accuracy"].high,
    }  # fmt: skip
    assert values["label_errors"]["rows"][0]["text"] == facts.label_errors.rows[0].text
    assert values["against"]["better"] == facts.against.better and values["matrix"]["labels"] == LABELS


def test_what_does_not_apply_is_left_out():
    rows = Examples({"text": ["a", "bb", "ccc"]}, [1.0, 2.0, 3.0], "rows")
    facts = evaluate_rows(Predicted(rows, ["spearman"], [1.0, 2.5, 2.0]), "m", "d")
    titles = [section.title for section in sections(facts)]
    assert titles == ["Scores", "Worst errors", "Errors of numbers", "Score by length of the text in characters"]
    assert "NaN" not in page.as_json(facts) and page.as_html(facts) and page.as_markdown(facts)


def test_many_classes_show_the_most_confused():
    gold = [f"c{i % 60}" for i in range(600)]
    predicted = [f"c{(i + (i < 90)) % 60}" for i in range(600)]
    rows = Examples({"text": [str(i) for i in range(600)]}, gold, "rows")
    facts = evaluate_rows(Predicted(rows, ["accuracy", "macro_f1"], predicted), "m", "d")
    assert len(facts.matrix.labels) == 20 and facts.matrix.classes == 60 and len(facts.confusions) == 20
    assert "the 20 most confused of 60 classes" in page.as_html(facts)


def test_one_row_is_enough():
    rows = Examples({"text": ["a"]}, ["x"], "rows")
    facts = evaluate_rows(Predicted(rows, ["accuracy"], ["x"], [{"x": 1.0, "y": 0.0}]), "m", "d")
    assert "100.0" in page.as_html(facts) and facts.errors == 0


def test_a_label_none_is_shown_and_a_warning_comes_first():
    rows = Examples({"text": ["a", "b"]}, ["None", "x"], "rows")
    facts = evaluate_rows(Predicted(rows, ["accuracy"], ["x", "x"]), "m", "d", warning="Trained with these rows.")
    assert "`None`" in page.as_markdown(facts) and '<dt>gold</dt><dd dir="auto">None</dd>' in page.as_html(facts)
    assert page.as_markdown(facts).index("- Trained with these rows.") < page.as_markdown(facts).index("- accuracy:")
