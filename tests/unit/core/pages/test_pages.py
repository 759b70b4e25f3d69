"""Charts and pages: escaped, complete in one file, without a script."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from jinja2 import UndefinedError

from headstart.core.pages import charts, page
from headstart.core.pages.charts import ChartLine, ChartPoint, IntervalRow, ParetoPoint, WaterfallRow
from headstart.core.pages.page import PageTable
from headstart.core.pages.svg import LABEL_GAP, Marker, picture_style

HOSTILE = """"><img src=x onerror=alert(1)>&"""


def line(name, *ys, index=0, **settings):
    points = [ChartPoint(10.0 * number, y, f"{name} {y}") for number, y in enumerate(ys, start=1)]
    return ChartLine(name, Marker.of(index), points, **settings)


def texts(figure, css):
    """Return x, y and text of the elements with a class."""
    found = [node for node in ET.fromstring(figure).iter("text") if (node.get("class") or "").startswith(css)]
    return [(float(node.get("x")), float(node.get("y")), node.text) for node in found]


def test_pictures_are_well_formed_and_escaped():
    pareto = [
        ParetoPoint(name, Marker.of(0), ChartPoint(cost, 1.0, name), is_on_front=True)
        for name, cost in ((HOSTILE, 2.0), ("b", 3.0))
    ]
    pictures = [
        charts.line_chart(HOSTILE, HOSTILE, HOSTILE, [line(HOSTILE, 1, 2), line("b", 2, 3, index=11, is_dashed=True)]),
        charts.cost_chart(HOSTILE, "s", "accuracy", pareto),
        charts.bar_chart(HOSTILE, {HOSTILE: 3, "b": 0}),
        charts.interval_chart(HOSTILE, [IntervalRow(HOSTILE, 0.5, 0.4, 0.7), IntervalRow("b", 0.9)]),
        charts.waterfall(HOSTILE, [WaterfallRow(HOSTILE, 0.5, 0.25, HOSTILE)]),
        charts.legend([(HOSTILE, Marker.of(25), True)]),
    ]
    for picture in pictures:
        assert "<img" not in picture
        ET.fromstring(picture)


def test_a_chart_of_one_point_is_drawn():
    ET.fromstring(charts.line_chart("x", "labels", "y", [line("a", 1.0)]))


def test_lines_that_end_together_have_labels_that_do_not_overlap():
    lines = [line(f"system {n}", 1.0, 2.0 + n / 1000, index=n) for n in range(6)]
    labels = texts(charts.line_chart("t", "x", "y", lines), "label")
    heights = sorted(y for _, y, _ in labels)
    assert len(labels) == 6 and min(b - a for a, b in itertools.pairwise(heights)) >= LABEL_GAP - 0.11
    assert [text for _, _, text in sorted(labels, key=lambda label: -label[1])] == [line.name for line in lines]


def test_many_lines_or_long_names_are_left_to_the_legend():
    many = [line(str(n), 1.0, 2.0, index=n) for n in range(20)]
    assert not texts(charts.line_chart("t", "x", "y", many), "label")
    assert not texts(charts.line_chart("t", "x", "y", [line("a" * 40, 1, 2), line("b", 1, 2)]), "label")


def test_tick_labels_do_not_overlap():
    close = [1000, 1001, 1002, 2000]
    chart = charts.line_chart("t", "x", "y", [line("a", 1, 2), line("b", 3)], ticks=close)
    drawn = [node.text for node in ET.fromstring(chart).iter("text")]
    assert "1,000" in drawn and "1,001" not in drawn


def test_a_dot_describes_itself_without_a_script():
    chart = charts.line_chart("t", "x", "y", [line("a", 1.0)])
    assert [text for *_, text in texts(chart, "tip")] == ["a 1.0"] and 'aria-label="a 1.0"' in chart
    assert re.search(r"\.dot:hover \+ \.tip.*visible", picture_style())


def test_a_picture_as_a_file_has_its_colors():
    text = charts.standalone(charts.waterfall("t", [WaterfallRow("read", 1.0, 0.0, "1 row")]))
    assert "background: var(--card)" in text.partition(">")[0], (
        "dark text on the dark page of a reader whose system is light"
    )
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and "prefers-color-scheme: dark" in text


@pytest.fixture
def template(tmp_path):
    def write(body):
        path = tmp_path / "page.html.j2"
        path.write_text(
            '{% extends "base.html.j2" %}{% from "parts.html.j2" import table %}'
            "{% block title %}{{ title }}{% endblock %}{% block body %}" + body + "{% endblock %}"
        )
        return path

    return write


def test_a_page_is_one_file_that_escapes_what_it_prints(template):
    html = page.render(template("<p>{{ title }}</p>"), title=HOSTILE)
    assert "<img" not in html and html.count("&lt;img") == 2
    assert "prefers-color-scheme: dark" in html and "@media print" in html and "width=device-width" in html
    assert not re.search(r"<script|<link|src=|url\(|@import|https?:", html.replace("src=x", ""))


def test_cells_of_a_table_are_escaped_and_have_classes(template):
    content = PageTable(["a", "n"], [["<b>", "1"], ["x" * 41, "2"]], [False, True], [False, True])
    html = page.render(template("{{ table(content, title) }}"), title="t", content=content)
    assert "<td>&lt;b&gt;</td>" in html and '<td class="number">1</td>' in html
    assert '<th scope="col" class="number">n</th>' in html and '<tr class="muted"><td class="long">' in html


def test_a_table_has_a_caption_and_names_of_rows_on_request(template):
    content = PageTable(["a", "n"], [["<b>", "1"]], [False, True], caption="<i>", has_row_names=True)
    html = page.render(template("{{ table(content) }}"), title="t", content=content)
    assert "<caption>&lt;i&gt;</caption>" in html
    assert '<tr><th scope="row">&lt;b&gt;</th><td class="number">1</td></tr>' in html


@pytest.mark.parametrize(("caption", "name"), [("<i>", "&lt;i&gt;"), ("", "Section &amp; title")])
def test_a_table_that_scrolls_is_reached_by_keyboard_and_has_a_name(template, caption, name):
    content = PageTable(["a"], [["1"]], [False], caption=caption)
    html = page.render(template("{{ table(content, title) }}"), title="Section & title", content=content)
    assert f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>' in html


def test_a_long_name_of_a_row_keeps_a_readable_width(template):
    content = PageTable(["a"], [["x" * 41]], [False], caption="c", has_row_names=True)
    html = page.render(template("{{ table(content) }}"), title="t", content=content)
    assert '<th scope="row" class="long">' in html
    (rule,) = re.findall(r"th\.long \{([^}]*)\}", html)
    assert "min-width: 12rem" in rule and "overflow-wrap: anywhere" in rule


def test_whiskers_of_an_interval_chart_cover_the_interval():
    figure = ET.fromstring(charts.interval_chart("t", [IntervalRow("a", 0.5, 0.4, 0.8), IntervalRow("b", 0.6)]))
    whiskers = [node for node in figure.iter("line") if "whisker" in (node.get("class") or "")]
    (whisker,), dots = whiskers, list(figure.iter("circle"))
    left, dot, right = (float(value) for value in (whisker.get("x1"), dots[0].get("cx"), whisker.get("x2")))
    assert len(dots) == 2 and (dot - left) / (right - left) == pytest.approx(0.25, abs=0.01)


def test_a_value_that_is_missing_is_an_error(template):
    with pytest.raises(UndefinedError):
        page.render(template("{{ absent }}"), title="t")
