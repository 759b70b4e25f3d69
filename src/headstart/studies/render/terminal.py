"""A study's table in the terminal: the columns that fit a screen, unfinished rows greyed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from headstart.studies.judge.tables import NOTHING, Table
from headstart.studies.judge.verdicts import Verdict

_DROPPED = ("low", "high", "lead low", "lead high", "p seeds", "p examples", "trained parameters", "FLOPs", "metric")
_DISPENSABLE = (
    "mean without overlap", "overlap", "effect", "sd", "forgotten in", "seeds", "forgotten", "failed seeds", "p Holm",
    "state",
)  # fmt: skip
"""What a narrow screen goes without, the least missed first."""
_STATE = 16
_UNBOUNDED = 100_000
_STYLES = {"confirmed": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


def show(console: Console, table: Table, verdicts: Sequence[Verdict]) -> None:
    """Print the scores, their intervals and leads, then the verdicts; to a pipe, every column at its width."""
    names = [column.name for column in table.columns]
    shown = [place for place, name in enumerate(names) if name not in _DROPPED and _is_used(table, place)]
    left_out = []
    if not console.is_terminal:
        console.width = max(console.width, _width(console, _grid(table, shown)))
    for name in _DISPENSABLE:
        if _width(console, _grid(table, shown, _STATE)) <= console.width:
            break
        if name in names and names.index(name) in shown:
            shown.remove(names.index(name))
            left_out.append(name)
    console.print(_grid(table, shown))
    if left_out:
        console.print(Text(f"Not shown for want of width: {', '.join(left_out)}.", style="dim"))
    for verdict in verdicts:
        console.print(Text(verdict.sentence(), style=_STYLES[verdict.word]))


def _grid(table: Table, shown: Sequence[int], widest_state: int | None = None) -> Grid:
    names = [column.name for column in table.columns]
    contexts = names.index("system")
    mean = names.index("mean")
    lead = next((place for place, name in enumerate(names) if name.startswith("lead over")), None)
    grid = Grid(show_edge=False, pad_edge=False)
    for place in shown:
        is_state = names[place] == "state"
        grid.add_column(
            Text(_head(names[place])), justify="right" if table.columns[place].is_number else "left",
            no_wrap=not is_state, max_width=widest_state if is_state else None,
        )  # fmt: skip
    rows = list(zip(table.texts(), table.unfinished, strict=True))
    for number, (cells, greyed) in enumerate(rows):
        row = list(cells)
        row[mean] = _spread(cells[mean], cells[mean + 2], cells[mean + 3])
        if lead is not None:
            row[lead] = _spread(cells[lead], cells[lead + 1], cells[lead + 2])
        is_last = number + 1 < len(rows) and rows[number + 1][0][:contexts] != cells[:contexts]
        grid.add_row(*(Text(row[place]) for place in shown), style="dim" if greyed else None, end_section=is_last)
    return grid


def _width(console: Console, grid: Grid) -> int:
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), grid).maximum


def _is_used(table: Table, place: int) -> bool:
    """Say whether some row has a value here: a column of dashes tells nothing."""
    return any(row[place] not in (None, "") for row in table.rows)


def _head(name: str) -> str:
    return f"{name} (95 %)" if name == "mean" or name.startswith("lead over") else name


def _spread(middle: str, low: str, high: str) -> str:
    return middle if NOTHING in (low, high) else f"{middle} ({low} to {high})"
