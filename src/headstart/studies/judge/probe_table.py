"""The table of a study's probes: every model that was probed, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headstart.evaluation.significance import interval
from headstart.studies.contrast import PROBE
from headstart.studies.definition import Study
from headstart.studies.grid import Context, System
from headstart.studies.judge.results import CellScore, Results
from headstart.studies.judge.tables import StudyTable, TableColumn, context_columns

_ALL = "all"
_Key = tuple[System, Context]


def probes(study: Study, results: Results) -> list[StudyTable]:
    """Return the figures of the probes, one row for each model; nothing where no probe is finished.

    A model that several systems or contexts share has one row, with the levels that they have in common.
    """
    rows: list[list[Any]] = []
    for outcome, found in results.outcomes.items():
        if not outcome.startswith(f"{PROBE}."):
            continue
        shared: dict[tuple[str, ...], list[_Key]] = {}
        for key, runs in found.scores.items():
            shared.setdefault(tuple(cell.node for cell in runs.values()), []).append(key)
        rows += [_row(outcome, keys, list(found.scores[keys[0]].values())) for keys in shared.values()]
    if not rows:
        return []
    decimals = lambda value: f"{value:.2f}"  # noqa: E731
    words = [TableColumn(name, str, is_number=False) for name in ("system", "outcome", "measure")]
    numbers = [TableColumn(name, str) for name in ("items", "seeds")]
    numbers += [TableColumn(name, decimals) for name in ("mean", "sd", "low", "high")]
    columns = [*context_columns(study), *words, *numbers]
    return [StudyTable("probes", "Probes", columns, rows, [False] * len(rows))]


def _row(outcome: str, keys: list[_Key], cells: list[CellScore]) -> list[Any]:
    contexts = [_common(levels) for levels in zip(*(context for _, context in keys), strict=True)]
    first, *others = [system for system, _ in keys]
    levels = [level for level in first.levels if all(level in system.levels for system in others)]
    name = "/".join([*([first.baseline] if first.baseline else []), *levels]) if others else first.name
    score = interval([cell.score for cell in cells])
    scale = cells[0].about.scale
    numbers = [None if value is None else scale * value for value in (score.mean, score.sd, score.low, score.high)]
    return [*contexts, name or _ALL, outcome, cells[0].metric, len(cells[0].gold) or None, len(cells), *numbers]


def _common(levels: Iterable[str]) -> str:
    found = set(levels)
    return found.pop() if len(found) == 1 else _ALL
