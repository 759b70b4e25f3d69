"""What a metric is: gold and predicted values in, one float out, and a declaration of what it measures.

Metrics lie in one file for each kind of gold value; a function is declared by `metric`, and named in the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headstart.core import registry
from headstart.core.errors import DataError

Metric = Callable[[Sequence[Any], Sequence[Any]], float]
MetricT = TypeVar("MetricT", bound=Metric)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """A metric as a function of sums over the examples, so that thousands of resamples are one product of matrices."""

    of_examples: Callable[[Sequence[Any], Sequence[Any]], Any]
    """Gold and predicted values in, an array (or a sparse matrix) of shape (examples, numbers) out."""
    value: Callable[[Floats], Floats]
    """Sums of shape (resamples, numbers) in, one value of the metric for each resample out."""


@dataclass(frozen=True)
class About:
    """What is known of a metric beside its function."""

    of: str = "label"
    """What a gold value is: a label, a number, labels (a list of them), a text, answers."""
    sums: Sums | None = None
    lower_is_better: bool = False
    scale: float = 100.0
    """By what a table multiplies it: shares are told in points of a hundred, perplexities as they are."""

    @property
    def decimals(self) -> int:
        """Return how many decimals a table shows: bits per byte differ in the third."""
        return 1 if self.scale > 1 else 3


def metric(of: str, **known: Any) -> Callable[[MetricT], MetricT]:
    """Declare a function to be a metric of some kind of gold value; `known` are the other fields of `About`."""

    def declare(function: MetricT) -> MetricT:
        function.about = About(of, **known)  # type: ignore[attr-defined]
        return function

    return declare


def about(name: str) -> About:
    """Return what a metric of the registry declares; a plugin's that declares nothing is one of labels."""
    found = getattr(registry.resolve("metrics", name), "about", None)
    return found if isinstance(found, About) else About()


def compute(names: Iterable[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Compute the named metrics of the registry, plugins' included, in the given order."""
    return {name: float(registry.resolve("metrics", name)(gold, predicted)) for name in names}


def with_selection(names: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Compute the named metrics; the first value is one that is better the higher it is."""
    values = compute(names, gold, predicted)
    return {f"negative {names[0]}": -values[names[0]], **values} if about(names[0]).lower_is_better else values


def plain(sequence: Sequence[Any]) -> list[Any]:
    """Turn arrays into lists of Python's own values, which hash and sort alike across sources."""
    return sequence.tolist() if isinstance(sequence, np.ndarray) else list(sequence)


def same_length(sequences: Sequence[Sequence[Any]]) -> None:
    """Refuse predictions that are not as many as the gold values, and an empty split."""
    lengths = [len(sequence) for sequence in sequences]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise DataError(
            f"there are {lengths[0]} gold values and {other} predictions",
            allowed="A metric needs one prediction per gold value",
        )
    if lengths[0] == 0:
        raise DataError("there are no examples to measure on", do="Give a split with at least one row")
