"""Print a study's table in the terminal: the columns that fit the screen, unfinished rows in gray."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from headstart.studies.judge.tables import NOTHING, StudyTable
from headstart.studies.judge.verdicts import Verdict

_DROPPED = ("low", "high", "lead low", "lead high", "p seeds", "p examples", "trained parameters", "FLOPs", "metric")
_DISPENSABLE = (
    "mean without overlap", "overlap", "effect", "sd", "forgotten in", "seeds", "forgotten", "failed seeds", "p Holm",
    "state",
)  # fmt: skip
"""Columns that a narrow screen leaves out, the least important first."""
_STATE_WIDTH = 16
_UNBOUNDED = 100_000
_STYLES = {"confirmed": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


def show(console: Console, table: StudyTable, verdicts: Sequence[Verdict]) -> None:
    """Print scores, intervals and leads, then the verdicts; a pipe gets every column at its full width."""
    names = [column.name for column in table.columns]
    shown = [index for index, name in enumerate(names) if name not in _DROPPED and _has_values(table, index)]
    left_out = []
    if not console.is_terminal:
        console.width = max(console.width, _width(console, _grid(table, shown)))
    for name in _DISPENSABLE:
        if _width(console, _grid(table, shown, _STATE_WIDTH)) <= console.width:
            break
        if name in names and names.index(name) in shown:
            shown.remove(names.index(name))
            left_out.append(name)
    console.print(_grid(table, shown))
    if left_out:
        console.print(Text(f"Columns that do not fit: {', '.join(left_out)}.", style="dim"))
    for verdict in verdicts:
        console.print(Text(verdict.sentence(), style=_STYLES[verdict.word]))


def _grid(table: StudyTable, shown: Sequence[int], state_width: int | None = None) -> Grid:
    names = [column.name for column in table.columns]
    contexts = names.index("system")
    mean = names.index("mean")
    lead = next((index for index, name in enumerate(names) if name.startswith("lead over")), None)
    grid = Grid(show_edge=False, pad_edge=False)
    for index in shown:
        is_state = names[index] == "state"
        grid.add_column(
            Text(_header(names[index])), justify="right" if table.columns[index].is_number else "left",
            no_wrap=not is_state, max_width=state_width if is_state else None,
        )  # fmt: skip
    rows = list(zip(table.texts(), table.unfinished, strict=True))
    for number, (cells, is_unfinished) in enumerate(rows):
        row = list(cells)
        row[mean] = _with_interval(cells[mean], cells[mean + 2], cells[mean + 3])
        if lead is not None:
            row[lead] = _with_interval(cells[lead], cells[lead + 1], cells[lead + 2])
        is_last = number + 1 < len(rows) and rows[number + 1][0][:contexts] != cells[:contexts]
        style = "dim" if is_unfinished else None
        grid.add_row(*(Text(row[index]) for index in shown), style=style, end_section=is_last)
    return grid


def _width(console: Console, grid: Grid) -> int:
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), grid).maximum


def _has_values(table: StudyTable, index: int) -> bool:
    """Return True if any row has a value in this column."""
    return any(row[index] not in (None, "") for row in table.rows)


def _header(name: str) -> str:
    return f"{name} (95 %)" if name == "mean" or name.startswith("lead over") else name


def _with_interval(middle: str, low: str, high: str) -> str:
    return middle if NOTHING in (low, high) else f"{middle} ({low} to {high})"
