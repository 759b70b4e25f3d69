"""What a metric is: a function from gold and predicted values to one float, with a declaration of what it measures.

There is one file of metrics for each kind of gold value. `metric` declares a function; the registry names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headstart.core import registry
from headstart.core.errors import DataError

Metric = Callable[[Sequence[Any], Sequence[Any]], float]
MetricT = TypeVar("MetricT", bound=Metric)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CORRECT, F1, CORRELATION = "fraction correct", "F1", "correlation"
"""Families of several metrics; a metric of no family is averaged with itself alone."""


@dataclass(frozen=True)
class Sums:
    """A metric as a function of sums over the examples, so that one matrix product computes thousands of resamples."""

    of_examples: Callable[[Sequence[Any], Sequence[Any]], Any]
    """Maps gold and predicted values to an array (or a sparse matrix) of shape (examples, numbers)."""
    value: Callable[[Floats], Floats]
    """Maps sums of shape (resamples, numbers) to one value of the metric for each resample."""


@dataclass(frozen=True)
class About:
    """The declaration of a metric."""

    of: str = "label"
    """What a gold value is: a label, a number, labels (a list of them), a text, answers."""
    sums: Sums | None = None
    lower_is_better: bool = False
    scale: float = 100.0
    """By what a table multiplies it: 100 for fractions, which are shown in points, 1 for perplexities."""
    family: str = ""
    """The kind of number it is. Only metrics of one family are averaged. Empty: the metric is its own family."""

    @property
    def decimals(self) -> int:
        """Return how many decimals a table shows; bits per byte differ in the third."""
        return 1 if self.scale > 1 else 3


def metric(of: str, **known: Any) -> Callable[[MetricT], MetricT]:
    """Declare a function as a metric of one kind of gold value; `known` are the other fields of `About`."""

    def declare(function: MetricT) -> MetricT:
        function.about = About(of, **known)  # type: ignore[attr-defined]
        return function

    return declare


def about(name: str) -> About:
    """Return the declaration of a registered metric; a plugin's metric without one is a metric of labels."""
    declared = getattr(registry.resolve("metrics", name), "about", None)
    declared = declared if isinstance(declared, About) else About()
    return declared if declared.family else replace(declared, family=name)


def compute(names: Iterable[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Compute the named metrics, including those of plugins, in the given order."""
    return {name: float(registry.resolve("metrics", name)(gold, predicted)) for name in names}


def with_selection(names: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Compute the named metrics; the first value is one of which higher is better, to select models by."""
    values = compute(names, gold, predicted)
    return {f"negative {names[0]}": -values[names[0]], **values} if about(names[0]).lower_is_better else values


def plain(sequence: Sequence[Any]) -> list[Any]:
    """Return a list of plain Python values, which hash and sort alike whatever array they came from."""
    return sequence.tolist() if isinstance(sequence, np.ndarray) else list(sequence)


def same_length(sequences: Sequence[Sequence[Any]]) -> None:
    """Refuse an empty split, and predictions whose number differs from that of the gold values."""
    lengths = [len(sequence) for sequence in sequences]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise DataError(
            f"there are {lengths[0]} gold values and {other} predictions",
            allowed="A metric needs one prediction per gold value",
        )
    if lengths[0] == 0:
        raise DataError("there are no examples to compute a metric on", do="Give a split with at least one row")
