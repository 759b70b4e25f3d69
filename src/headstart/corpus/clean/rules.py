"""A named quality rule: the measure that it reads, and when it drops a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headstart.core.data import Bools

Values = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Rule:
    """A named rule on one measure of a text."""

    name: str
    measure: str
    """The name of the value that is compared with the threshold."""
    fails: Callable[[npt.NDArray[np.float64]], Bools]


def at_least(name: str, measure: str, minimum: float) -> Rule:
    """Return a rule that drops documents below a minimum."""
    return Rule(name, measure, lambda values: values < minimum)


def at_most(name: str, measure: str, maximum: float) -> Rule:
    """Return a rule that drops documents above a maximum."""
    return Rule(name, measure, lambda values: values > maximum)


def verdict(rules: Sequence[Rule], values: Values, rows: int) -> pa.Array:
    """Return for each row the name of the first rule that drops it, or null."""
    first = np.full(rows, -1, dtype=np.int64)
    for i, rule in enumerate(rules):
        first[(first < 0) & rule.fails(values[rule.measure])] = i
    names = pa.array([*(rule.name for rule in rules), None], pa.string())
    return names.take(pa.array(np.where(first < 0, len(rules), first)))


def ratio(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide, with 0 where the divisor is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
