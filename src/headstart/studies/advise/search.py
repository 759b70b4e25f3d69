"""The search: run methods within a time budget, select learning rates, and stop by a stated rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.evaluation.comparison import Comparison, compare_runs
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.metrics import about
from headstart.studies.advise.cells import CellFailed, CellResult
from headstart.studies.advise.methods import Method
from headstart.studies.advise.prior import PRIORS, Belief, Priors, measurement_error
from headstart.studies.advise.rounds import ROUNDS

WORTHWHILE = 0.005
"""The smallest gain that counts, as a fraction: half a point of a hundred."""
_POINTS = f"{100 * WORTHWHILE:g} points"
_MOST_FUTILE = 2
"""After this many trained methods in a row without a possible gain, dearer ones are not tried."""
FINAL_SHARE = 1.5
"""The time of the final training, as a multiple of that of a cell: it reads more rows, and predicts the test rows."""
CORPUS_SHARE, ADAPTING_SHARE = 0.4, 0.25
"""The shares of the time that are kept for adapting to a corpus first, and for its pre-training alone."""

RunCell = Callable[[Method, float | None, int], CellResult]
"""Runs a method with a learning rate in a round."""
Forecast = Callable[[Method, Mapping[str, float]], float | None]
"""Returns the seconds of a method's cell from the measured seconds of other networks' cells, None if none is known."""


@dataclass
class Clock:
    """A budget of seconds; what was spent is the recorded time of cells, so a resumed search decides alike."""

    budget: float
    spent: float = 0.0
    reserved: float = 0.0
    """Seconds that are kept for the last method."""

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.budget - self.spent - self.reserved


@dataclass
class TriedMethod:
    """One method after its rounds."""

    method: Method
    rate: float | None = None
    """The selected learning rate."""
    rounds: dict[int, CellResult] = field(default_factory=dict)
    """The results with that rate, by round."""
    tried: dict[float | None, dict[int, CellResult]] = field(default_factory=dict)
    lead: Comparison | None = None
    """The comparison with the method that was the best before it, on the rounds that both have."""
    compared_with: str = ""
    belief: Belief | None = None
    """What the lead is likely to be: the measured one, and what was known before; None if nothing was known."""
    is_futile: bool = False
    """True if its rounds show that it is not expected to gain anything."""
    note: str = ""
    """Why it has fewer rounds than it could, or none."""

    @property
    def cells(self) -> list[CellResult]:
        """Return all its results, those of other learning rates too."""
        return [cell for rounds in self.tried.values() for cell in rounds.values()]

    @property
    def seconds(self) -> float:
        """Return the time of all its cells."""
        return sum(cell.seconds for cell in self.cells)

    @property
    def cell_seconds(self) -> float:
        """Return the mean time of a cell, without the pre-training that its first cell may run."""
        return sum(cell.seconds - cell.adapting_seconds for cell in self.cells) / len(self.cells)

    @property
    def cost(self) -> PriceTag:
        """Return the cost of all its cells."""
        return reduce(add, (cell.cost for cell in self.cells))

    def pooled(self, rounds: Sequence[int] | None = None) -> tuple[list[Any], list[Any]]:
        """Return gold values and predictions of all held-out rows of its rounds."""
        cells = [self.rounds[number] for number in (sorted(self.rounds) if rounds is None else rounds)]
        return [g for cell in cells for g in cell.gold], [p for cell in cells for p in cell.predictions]


@dataclass(frozen=True)
class SearchResult:
    """The methods that ran, the best of all and the best network among them, and why the search ended."""

    results: list[TriedMethod]
    best: TriedMethod
    best_network: TriedMethod
    stopped: str
    not_tried: list[str]


def keep_half(means: Mapping[float | None, float]) -> list[float | None]:
    """Return the better half of the candidates (rounded up), the best first; ties keep their order."""
    ranked = sorted(means, key=lambda rate: -means[rate])
    return ranked[: max(1, (len(ranked) + 1) // 2)]


def compare_methods(first: TriedMethod, second: TriedMethod) -> Comparison | None:
    """Compare two methods on the rounds that both have; None if there are none."""
    common = sorted(first.rounds.keys() & second.rounds.keys())
    if not common:
        return None
    gold, predictions = first.pooled(common)
    metric = first.rounds[common[0]].metric
    return compare_runs(gold, {0: predictions}, {0: second.pooled(common)[1]}, metric)


def is_futile(lead: Comparison | None) -> bool:
    """True if the upper end of the 95 % interval of a method's lead is below the smallest gain that counts."""
    return lead is not None and lead.high < WORTHWHILE


def is_better(lead: Comparison | None) -> bool:
    """True if a method's lead is large enough to prefer it to a cheaper one."""
    return lead is not None and lead.difference >= WORTHWHILE


class Search:
    """Runs methods one after the other; knows the best so far."""

    def __init__(
        self,
        run: RunCell,
        rates: Callable[[Method], list[float | None]],
        forecast: Forecast,
        clock: Clock,
        priors: Priors = PRIORS,
    ) -> None:
        """Take the functions that run and forecast cells.

        Args:
            run: runs one cell, or reads its result.
            rates: returns the candidate learning rates of a method.
            forecast: returns the seconds of a cell of a method that has not run yet.
            clock: the time budget.
            priors: what is known about the leads of methods before they run.
        """
        self.priors = priors
        self._skipped: list[str] = []
        self.run, self.rates, self.forecast, self.clock = run, rates, forecast, clock
        self.results: list[TriedMethod] = []
        self.best: TriedMethod | None = None
        self.best_network: TriedMethod | None = None
        self.stopped = ""
        self._futile = 0

    def try_methods(self, methods: Sequence[Method]) -> None:
        """Run methods until the list or the time ends, or dearer ones are not expected to gain anything."""
        for method in methods:
            if self.stopped:
                return
            if method.is_trained:
                self.stopped = self._reason_to_stop(method)
                if self.stopped:
                    return
                gain = self._expected_gain(method)
                if gain is not None and gain < WORTHWHILE:
                    assert self.best is not None
                    self._skipped.append(
                        f"{method.name} was not tried: with so few held-out rows, the expected gain over "
                        f"{self.best.method.name} is {100 * gain:.1f} points."
                    )
                    continue
            self._try_method(method)

    def try_last(self, method: Method) -> None:
        """Run one more method also if dearer ones were not expected to gain anything, unless there is no time."""
        reason, self.stopped, self._futile = self.stopped, "", 0
        self.clock.reserved = 0.0
        self.try_methods([method])
        self.stopped = reason or self.stopped

    def finished(self, methods: Sequence[Method]) -> SearchResult:
        """Return the outcome.

        Raises:
            DataError: no network has a result.
        """
        if self.best is None or self.best_network is None:
            reasons = "; ".join(f"{result.method.name}: {result.note}" for result in self.results if result.note)
            raise DataError(
                f"no network could be trained on these rows ({reasons})", do="Use another --model, or `svm`"
            )
        seen = {result.method.name for result in self.results}
        not_tried = [method.name for method in methods if method.name not in seen]
        return SearchResult(self.results, self.best, self.best_network, self._why_ended(), not_tried)

    def _why_ended(self) -> str:
        return " ".join(filter(None, [*self._skipped, self.stopped])) or "All methods were tried."

    def _try_method(self, method: Method) -> None:
        result = TriedMethod(method)
        self.results.append(result)
        candidates = self.rates(method)
        for number in range(ROUNDS):
            for rate in candidates:
                refusal = self._too_slow(method, result)
                if refusal:
                    self.stopped = refusal
                    result.note = f"ended after {len(result.cells)} runs, for lack of time"
                    break
                if not self._run_cell(result, rate, number):
                    return
            ran = [rate for rate in candidates if number in result.tried.get(rate, {})]
            if ran:
                means = {rate: _mean_validation(result.tried[rate]) for rate in ran}
                candidates = keep_half(means)
                self._select(result, candidates[0])
            if self.stopped:
                break
            why = self._why_futile(result, ROUNDS - 1 - number)
            result.is_futile = bool(why)
            if method.is_trained and why and number < ROUNDS - 1:
                result.note = f"ended after round {number + 1} of {ROUNDS}: {why}"
                break
        if result.cells:
            self._place(result)
        else:
            self.results.remove(result)

    def _run_cell(self, result: TriedMethod, rate: float | None, number: int) -> bool:
        """Run a cell and charge its time; False if the method cannot be used or failed."""
        method = result.method
        try:
            cell = self.run(method, rate, number)
        except CellFailed as error:
            logger.warning("%s", error)
            result.note, result.rounds = str(error), {}
            return False
        self.clock.spent += cell.seconds
        if cell.left_out:
            result.note = cell.left_out
            if cell.is_new:
                logger.info("%s is left out: %s", method.name, cell.left_out)
            return False
        result.tried.setdefault(rate, {})[number] = cell
        if cell.is_new:
            scale, decimals = about(cell.metric).scale, about(cell.metric).decimals
            logger.info(
                "%s%s, round %d of %d: %s %.*f, %.1f s (%s left)", method.name,
                "" if rate is None else f" at rate {rate:g}", number + 1, ROUNDS, cell.metric, decimals,
                scale * cell.score, cell.seconds, minutes(self.clock.left),
            )  # fmt: skip
        return True

    def _select(self, result: TriedMethod, rate: float | None) -> None:
        """Select a learning rate and compare the method with the best one before it.

        A method that adapts the checkpoint first, or learns from the best network, is compared with that network.
        """
        result.rate, result.rounds = rate, result.tried[rate]
        other = self.best_network if result.method.extends_best else self.best
        if other is not None:
            result.lead, result.compared_with = compare_methods(result, other), other.method.name
            result.belief = self._belief(result, other, result.lead)

    def _belief(self, result: TriedMethod, other: TriedMethod, lead: Comparison | None) -> Belief | None:
        """Return what the lead is likely to be; None if nothing is known about it, or a row has no single label."""
        prior = self.priors.get((result.method.name, other.method.name))
        if prior is None or lead is None or not _has_single_labels(other):
            return None
        return prior.after(lead)

    def _is_better(self, result: TriedMethod, other: TriedMethod) -> bool:
        """True if a method is likely to lead by the smallest gain that counts."""
        lead = compare_methods(result, other)
        belief = self._belief(result, other, lead)
        return is_better(lead) if belief is None else belief.mean >= WORTHWHILE

    def _expected_gain(self, method: Method) -> float | None:
        """Return what trying a method is expected to gain over the best one; None if nothing is known."""
        if self.best is None or self.best_network is None or not _has_single_labels(self.best):
            return None
        prior = self.priors.get((method.name, self.best.method.name))
        return None if prior is None else prior.expected_gain(_error(self.best, ROUNDS))

    def _why_futile(self, result: TriedMethod, rounds: int) -> str:
        """Return why the remaining rounds of a method are not worth their time; empty if they are."""
        if result.belief is None:
            reason = f"the 95 % interval of its lead over {result.compared_with} ends below {_POINTS}"
            return reason if is_futile(result.lead) else ""
        gain = result.belief.expected_gain(_error(result, rounds)) if rounds else max(0.0, result.belief.mean)
        return f"the expected gain over {result.compared_with} is below {_POINTS}" if gain < WORTHWHILE else ""

    def _place(self, result: TriedMethod) -> None:
        """Update the best method, the best network and the count of futile methods."""
        if not result.rounds:
            return
        if self.best is None or self._is_better(result, self.best):
            self.best = result
        if result.method.is_network and (self.best_network is None or self._is_better(result, self.best_network)):
            self.best_network = result
        if result.method.is_trained:
            self._futile = self._futile + 1 if result.is_futile else 0

    def _reason_to_stop(self, method: Method) -> str:
        """Return why a trained method and those after it are not tried; empty if they are."""
        if self.best_network is None or self.best is None:
            return ""
        metric = next(iter(self.best.rounds.values())).metric
        gold, _ = self.best.pooled()
        score = sum(cell.score * len(cell.gold) for cell in self.best.rounds.values()) / len(gold)
        if about(metric).scale > 1 and not about(metric).lower_is_better and 1 - score < WORTHWHILE:
            return f"{self.best.method.name} leaves less than {_POINTS} to gain, so {method.name} was not tried."
        if self._futile >= _MOST_FUTILE:
            return f"The last {_MOST_FUTILE} trained methods could not gain {_POINTS}, so {method.name} was not tried."
        return ""

    def _too_slow(self, method: Method, result: TriedMethod) -> str:
        """Return why the time left does not allow another cell of a network; empty if it does."""
        if not method.is_network or (self.best_network is None and not result.cells):
            # Without any network there is no model to return, whatever the time.
            return ""
        measured = {r.method.name: r.cell_seconds for r in self.results if r.method.is_network and r.cells}
        seconds = result.cell_seconds if result.cells else self.forecast(method, measured)
        if seconds is None:
            return ""
        reserved = FINAL_SHARE * max(seconds, self.best_network.cell_seconds if self.best_network else 0.0)
        if not result.cells:
            seconds += method.adapting_seconds
        if seconds + reserved <= self.clock.left:
            return ""
        return (
            f"The time left ({minutes(self.clock.left)}) does not allow {'another' if result.cells else 'a'} run of "
            f"{method.name} (about {minutes(seconds)}) and the final training (about {minutes(reserved)})."
        )


def minutes(seconds: float) -> str:
    """Return a time in minutes, with one decimal."""
    return f"{max(0.0, seconds) / 60:.1f} min"


def _has_single_labels(result: TriedMethod) -> bool:
    """True if every row has one label, as in the study that the priors are from."""
    return isinstance(next(iter(result.rounds.values())).gold[0], str | int)


def _error(result: TriedMethod, rounds: int) -> float:
    """Return the standard error of a lead over a method that is measured in so many rounds."""
    gold, _ = result.pooled()
    score = sum(cell.score * len(cell.gold) for cell in result.rounds.values()) / len(gold)
    return measurement_error(score, rounds * len(gold) // len(result.rounds))


def _mean_validation(rounds: Mapping[int, CellResult]) -> float:
    return sum(cell.validation for cell in rounds.values()) / len(rounds)
