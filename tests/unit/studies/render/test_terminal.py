"""The table of a study on screens of several widths and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headstart.studies.judge.tables import StudyTable, TableColumn
from headstart.studies.render import terminal


def _table() -> StudyTable:
    names = ["task", "system", "metric", "seeds", "mean", "sd", "low", "high", "lead over svm", "lead low",
             "lead high", "effect", "overlap", "mean without overlap", "failed seeds", "state"]  # fmt: skip
    numbers = {"seeds", "mean", "sd", "low", "high", "lead over svm", "lead low", "lead high", "effect"}
    columns = [TableColumn(name, str, is_number=name in numbers) for name in names]
    rows = [
        ["sst2", "minilm/features", "accuracy", 5, 70.4, 3.1, 66.5, 74.3, 15.2, 9.9, 20.6, 2.1, "0/9", 70.4, "2", ""],
        ["sst2", "svm", "accuracy", 5, 55.2, 3.6, 50.8, 59.7, None, None, None, None, None, None, None, ""],
        ["rte", "minilm/features", None, 0, *[None] * 11, "not run yet: seeds 0, 1, 2, 3, 4"],
    ]  # fmt: skip
    return StudyTable("table", "Scores in full", columns, rows, [False, False, True])


def _shown(width: int, is_terminal: bool) -> list[str]:
    sheet = io.StringIO()
    console = Console(file=sheet, width=width, force_terminal=is_terminal, color_system=None)
    terminal.show(console, _table(), [])
    return sheet.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_cell_is_cut_and_columns_left_out_are_named(width: int) -> None:
    lines = _shown(width, is_terminal=True)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text and "70.4 (66.5 to 74.3)" in text and "15.2 (9.9 to 20.6)" in text
    left_out = {
        name.strip(" .") for name in " ".join(" ".join(lines).split()).partition("do not fit:")[2].split(",")
    } - {""}
    headers = {header.strip() for header in lines[0].split("┃")}
    assert left_out.isdisjoint(headers)
    assert left_out | headers >= {"task", "system", "seeds", "sd", "effect", "overlap", "failed seeds", "state"}
    assert {"task", "system", "mean (95 %)", "lead over svm (95 %)"} <= headers


def test_a_narrower_screen_shows_fewer_columns() -> None:
    counts = [_shown(width, is_terminal=True)[0].count("┃") for width in (80, 100, 140)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_brackets_in_a_reason_are_not_read_as_markup() -> None:
    table = _table()
    table.rows[2][-1] = "failed: [/data/x] is missing; pip install 'headstart[corpus]' :warning:"
    sheet = io.StringIO()
    terminal.show(Console(file=sheet, width=80, force_terminal=False), table, [])
    assert table.rows[2][-1] in sheet.getvalue()


def test_a_pipe_gets_every_column_and_one_line_per_row() -> None:
    lines = _shown(80, is_terminal=False)
    assert "mean without overlap" in lines[0]
    assert any("not run yet: seeds 0, 1, 2, 3, 4" in line for line in lines)
    assert not any("do not fit" in line for line in lines)
