"""A study's table in the terminal: the columns that fit a screen, unfinished rows greyed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid

from headstart.studies.tables import NOTHING, Table
from headstart.studies.verdicts import Verdict

_DROPPED = ("low", "high", "lead low", "lead high", "p seeds", "p examples", "trained parameters", "FLOPs", "metric")
_STYLES = {"confirmed": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


def show(console: Console, table: Table, verdicts: Sequence[Verdict]) -> None:
    """Print the scores, their intervals and leads, then the verdicts."""
    names = [column.name for column in table.columns]
    shown = [place for place, name in enumerate(names) if name not in _DROPPED and _is_used(table, place)]
    grid = Grid(show_edge=False, pad_edge=False)
    for place in shown:
        right = table.columns[place].is_number
        grid.add_column(_head(names[place]), justify="right" if right else "left", no_wrap=names[place] != "state")
    low, high = names.index("low"), names.index("high")
    lead = next((place for place, name in enumerate(names) if name.startswith("lead over")), None)
    for cells, greyed in zip(table.texts(), table.unfinished, strict=True):
        row = list(cells)
        row[names.index("mean")] = _spread(cells[names.index("mean")], cells[low], cells[high])
        if lead is not None:
            row[lead] = _spread(cells[lead], cells[lead + 1], cells[lead + 2])
        grid.add_row(*(row[place] for place in shown), style="dim" if greyed else None)
    console.print(grid)
    for verdict in verdicts:
        console.print(verdict.sentence(), style=_STYLES[verdict.word], highlight=False)


def _is_used(table: Table, place: int) -> bool:
    """Say whether some row has a value here: a column of dashes tells nothing."""
    return any(row[place] not in (None, "") for row in table.rows)


def _head(name: str) -> str:
    return "mean (95 % interval)" if name == "mean" else f"{name} (95 %)" if name.startswith("lead over") else name


def _spread(middle: str, low: str, high: str) -> str:
    return middle if NOTHING in (low, high) else f"{middle} ({low} to {high})"
