"""SVG elements, scales, and labels that do not overlap."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from headstart.core.pages.svg import (
    COLORS,
    LABEL_GAP,
    AxisScale,
    Label,
    Marker,
    element,
    format_number,
    nudge,
    spans_decades,
)

HOSTILE = """"'><script>alert(1)</script>&amp;"""


def test_text_and_attributes_are_escaped():
    made = element("text", HOSTILE, class_=HOSTILE, data_cell=HOSTILE)
    assert "<script" not in made and isinstance(made, Markup)
    parsed = ET.fromstring(made)
    assert parsed.text == HOSTILE and parsed.attrib == {"class": HOSTILE, "data-cell": HOSTILE}


def test_elements_nest_and_numbers_are_short():
    made = element("g", element("line", x1=1.0, x2=2.345, y1=None), "a < b")
    assert made == '<g><line x1="1" x2="2.3"></line>a &lt; b</g>'


def test_series_beyond_the_last_color_have_another_shape():
    markers = [Marker.of(index) for index in range(3 * COLORS)]
    assert len(set(markers)) == len(markers)
    assert [ET.fromstring(marker.draw(1, 2, 3)).tag for marker in markers[::COLORS]] == ["circle", "rect", "polygon"]


@pytest.mark.parametrize(
    ("values", "is_log", "ticks"),
    [
        ([0, 10], False, [0, 2, 4, 6, 8, 10]),
        ([32, 2048], True, [50, 100, 200, 500, 1000, 2000]),
        ([1e9, 1e15], True, [1e10, 1e12, 1e14]),
        ([5, 5], False, [4.8, 4.9, 5, 5.1, 5.2]),
    ],
)
def test_ticks_are_round_numbers(values, is_log, ticks):
    assert AxisScale.around(values, 0, 100, is_log).ticks() == pytest.approx(ticks)


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=9), st.booleans())
def test_every_value_and_a_few_ticks_are_inside_the_scale(values, is_log):
    scale = AxisScale.around(values, 10, 90, is_log)
    assert all(9.99 <= scale(value) <= 90.01 for value in values)
    assert len(scale.ticks()) <= 7
    assert all(9.99 <= scale(tick) <= 90.01 for tick in scale.ticks())


def test_only_positive_numbers_of_a_wide_range_need_a_log_scale():
    assert spans_decades([1, 10]) and not spans_decades([1, 9]) and not spans_decades([0, 10]) and not spans_decades([])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1000, "1,000"), (2e12, "2e12"), (1e-5, "1e-5"), (3.64e9, "3.64e9"), (1 / 3, "0.333")],
)
def test_numbers_of_an_axis(value, text):
    assert format_number(value) == text


labels = st.lists(
    st.builds(Label, st.text("ab", min_size=1, max_size=20), st.floats(0, 300), st.floats(0, 280), st.booleans()),
    max_size=12,
)


@given(labels)
def test_labels_do_not_cover_each_other_and_stay_in_the_picture(given):
    moved = nudge(given, 0, 280)
    assert [(label.text, label.x) for label in moved] == [(label.text, label.x) for label in given], "the order changed"
    for first, label in enumerate(moved):
        assert label.y <= 280
        for other in moved[first + 1 :]:
            assert not label.collides(other) or abs(label.y - other.y) >= LABEL_GAP - 1e-6


def test_labels_that_have_room_are_not_moved():
    apart = [Label("a", 5, 20), Label("b", 5, 60), Label("far away", 200, 21)]
    assert nudge(apart, 0, 280) == apart
