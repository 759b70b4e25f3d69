"""Count the independent units of a comparison in which neither side is trained.

What is not trained has no training rows and no seed: all its seeds are one run, and what varies is the test set. Test
sets are independent if they share no rows. Those with the same gold values count as one too, because they are one set
in another form, such as its translations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headstart.core import config
from headstart.evaluation.comparison import PairedScores
from headstart.evaluation.metrics import plain
from headstart.studies.grid import Context
from headstart.studies.judge.results import CellScore


def are_untrained(cells: Iterable[CellScore]) -> bool:
    """Return whether all of these cells are of systems that are not trained."""
    return all(cell.test_rows is not None for cell in cells)


def one_run(paired: PairedScores) -> PairedScores:
    """Return all seeds as one, so that copies of one run are not counted as several."""
    return replace(
        paired,
        differences={0: float(np.mean(list(paired.differences.values())))},
        resampled={0: np.mean(list(paired.resampled.values()), axis=0)},
    )


def by_test_rows(
    pairs: Mapping[tuple[Context, ...], PairedScores], cells: Mapping[Context, Sequence[CellScore]]
) -> list[PairedScores]:
    """Return each pair as one run, in a group with those whose contexts have test rows in common.

    Pairs are in one group too if each shares rows with a third one, as a selection from several test sets does.
    """
    keys = list(pairs)
    parents = list(range(len(keys)))

    def root(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    first: dict[str, int] = {}
    for index, contexts in enumerate(keys):
        for row in set().union(*(_rows(cell) for context in contexts for cell in cells[context])):
            parents[root(index)] = root(first.setdefault(row, index))
    return [replace(one_run(pairs[key]), group=f"test rows {root(index)}") for index, key in enumerate(keys)]


def _rows(cell: CellScore) -> set[str]:
    """Return the hashes of the test rows, and one of all gold values unless these are equal and identify nothing."""
    is_constant = all(value == cell.gold[0] for value in cell.gold)
    return {*(cell.test_rows or ()), *([] if is_constant else [f"gold {config.fingerprint(plain(cell.gold))}"])}
