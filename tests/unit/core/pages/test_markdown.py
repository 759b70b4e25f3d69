"""Markdown tables: no cell can break the table or inject markup."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.core.pages.markdown import code, escape, markdown_table


def test_a_table_with_aligned_numbers():
    table = markdown_table(["name", "score"], [["full", "89.0"], ["svm", "< 0.001"]], numeric=[False, True])
    assert table == "| name | score |\n|---|--:|\n| full | 89.0 |\n| svm | < 0.001 |"
    assert markdown_table(["a"], []) == "| a |\n|---|"


def test_special_characters_are_escaped():
    assert escape("a|b") == r"a\|b"
    assert escape("`x`\n y") == r"\`x\` y"
    assert escape("<b>1 < 2</b>") == r"\<b>1 < 2\</b>"
    assert escape("[click](x) [1]") == r"[click\](x) [1]"
    assert escape(escape("a|b")) == escape("a|b"), "Markdown is not escaped twice"


def test_code_spans_hold_backticks_and_pipes():
    assert code("data.csv") == "`data.csv`"
    assert code("a|b") == r"`a\|b`"
    assert code("a`b") == "``a`b``" and code("`a") == "`` `a ``"
    assert markdown_table(["file"], [[code("x|y")]]).splitlines()[2] == r"| `x\|y` |"


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_no_text_adds_a_row_or_a_column(cells):
    lines = markdown_table(cells, [cells]).split("\n")
    assert len(lines) == 3
    for line in lines:
        unescaped = line.replace("\\\\", "").replace("\\|", "")
        assert unescaped.count("|") == len(cells) + 1
