"""The rule of the search: halving of rates, early ends, the reasons to stop, and which method is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from headstart.core.errors import DataError
from headstart.evaluation.cost import PriceTag
from headstart.studies.advise.cells import CellFailed, CellResult
from headstart.studies.advise.climb import Climber, Clock, keep_half
from headstart.studies.advise.ladder import LADDER, Rung
from headstart.studies.advise.rounds import ROUNDS

ROWS = 400
CHEAP = (Rung("svm", is_network=False), Rung("linear_probe"))
FIRST, SECOND, THIRD = (Rung(name, is_trained=True, rates=(1.0, 2.0, 4.0)) for name in ("contrast", "lora", "full"))


@dataclass
class Bench:
    """Cells of made-up methods: each has an accuracy, and a best learning rate at which its validation is highest."""

    accuracy: dict[str, float]
    best_rate: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    ran: list[tuple[str, float | None, int]] = field(default_factory=list)

    def run(self, rung: Rung, rate: float | None, number: int) -> CellResult:
        self.ran.append((rung.name, rate, number))
        if rung.name in self.broken:
            raise CellFailed(f"{rung.name} failed: the disk is full")
        if rung.name in self.left_out:
            return CellResult(left_out=self.left_out[rung.name])
        wrong = np.random.default_rng([number, 7]).permutation(ROWS) >= self.accuracy[rung.name] * ROWS
        predictions = ["b" if w else "a" for w in wrong]
        validation = 1.0 if rate is None else 1 - abs(np.log2(rate / self.best_rate)) / 10
        return CellResult(
            "accuracy", ["a"] * ROWS, predictions, float(1 - wrong.mean()), validation,
            self.seconds.get(rung.name, 1.0), PriceTag(),
        )  # fmt: skip

    def climb(self, *rungs: Rung, budget: float = 1000.0, forecast: float | None = 1.0) -> Climber:
        climber = Climber(self.run, lambda rung: list(rung.rates) or [None], lambda *_: forecast, Clock(budget))
        climber.climb([*CHEAP, *rungs])
        return climber


def test_the_better_half_of_the_rates_stays():
    assert keep_half({1.0: 0.5, 2.0: 0.9, 4.0: 0.7}) == [2.0, 4.0]
    assert keep_half({1.0: 0.5, 2.0: 0.9}) == [2.0]
    assert keep_half({1.0: 0.5}) == [1.0]
    assert keep_half({1.0: 0.5, 2.0: 0.5}) == [1.0]


def test_rates_are_halved_after_each_round_by_validation_alone():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8}, best_rate=4.0)
    climber = bench.climb(FIRST)
    rates = [[rate for name, rate, number in bench.ran if (name, number) == ("contrast", n)] for n in range(ROUNDS)]
    assert rates == [[1.0, 2.0, 4.0], [4.0, 2.0], [4.0]]
    assert climber.results[-1].rate == 4.0 and sorted(climber.results[-1].rounds) == [0, 1, 2]


def test_a_clearly_worse_method_ends_after_its_first_round_and_two_of_them_end_the_search():
    bench = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.6, "lora": 0.6, "full": 0.9})
    climb_ = bench.climb(FIRST, SECOND, THIRD)
    climb = climb_.finished([*CHEAP, FIRST, SECOND, THIRD])
    assert {number for name, _, number in bench.ran if name == "lora"} == {0}
    assert "ends below 0.5 points" in climb.results[-1].note
    assert climb.not_tried == ["full"] and "could not gain 0.5 points" in climb.stopped
    assert climb.best_network.rung.name == "linear_probe"


def test_a_gain_in_between_resets_the_count_of_futile_methods():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6, "contrast": 0.4, "lora": 0.8, "full": 0.9})
    climb = bench.climb(FIRST, SECOND, THIRD).finished([])
    assert climb.best.rung.name == "full" and climb.stopped == "All methods were tried."


def test_time_that_is_left_decides_whether_a_method_starts():
    accuracy = {"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8}
    # Three cells of each cheap method take 6 s; a run of 10 s and its final training of 15 s need 25 s more.
    late = Bench(accuracy).climb(FIRST, budget=30.9, forecast=10.0).finished([*CHEAP, FIRST])
    assert late.not_tried == ["contrast"] and "does not allow a run of contrast" in late.stopped
    slow = Bench(accuracy, seconds={"contrast": 10.0})
    climb = slow.climb(FIRST, budget=31.1, forecast=10.0).finished([*CHEAP, FIRST])
    assert [rate for name, rate, _ in slow.ran if name == "contrast"] == [1.0]
    assert climb.best_network.rung.name == "contrast" and "another run of contrast" in climb.stopped


def test_a_slow_probe_ends_after_one_round():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6}, seconds={"linear_probe": 100.0})
    climb = bench.climb(FIRST, budget=120.0).finished([*CHEAP, FIRST])
    assert [cell for cell in bench.ran if cell[0] == "linear_probe"] == [("linear_probe", None, 0)]
    assert "another run of linear_probe" in climb.stopped and climb.not_tried == ["contrast"]


def test_a_cheaper_method_is_kept_if_the_lead_is_below_half_a_point():
    near = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.8025}).climb(FIRST).finished([])
    assert near.best_network.rung.name == "linear_probe"
    far = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.81}).climb(FIRST).finished([])
    assert far.best_network.rung.name == "contrast"


def test_the_model_is_a_network_also_if_a_baseline_is_better():
    climb = Bench({"svm": 0.9, "linear_probe": 0.6, "contrast": 0.7}).climb(FIRST).finished([])
    assert climb.best.rung.name == "svm" and climb.best_network.rung.name == "contrast"


def test_nothing_is_trained_if_nothing_is_left_to_gain():
    climb = Bench({"svm": 0.5, "linear_probe": 0.9975}).climb(FIRST).finished([*CHEAP, FIRST])
    assert "less than 0.5 points to gain" in climb.stopped and climb.not_tried == ["contrast"]


def test_methods_that_fail_or_do_not_apply_are_passed_over():
    bench = Bench({"svm": 0.5, "lora": 0.7}, left_out={"linear_probe": "no vectors"}, broken=("contrast",))
    climb = bench.climb(FIRST, SECOND).finished([])
    assert climb.best_network.rung.name == "lora"
    assert [r.note for r in climb.results if not r.rounds] == ["no vectors", "contrast failed: the disk is full."]


def test_without_a_network_the_reasons_are_reported():
    with pytest.raises(DataError, match=r"no network could be trained.*linear_probe: no vectors"):
        Bench({"svm": 0.5}, left_out={"linear_probe": "no vectors"}).climb().finished([])


def test_the_first_network_runs_once_whatever_the_time():
    bench = Bench({"svm": 0.5, "lora": 0.7}, left_out={"linear_probe": "no vectors"})
    climb = bench.climb(SECOND, THIRD, budget=0.0).finished([SECOND, THIRD])
    assert [cell for cell in bench.ran if cell[0] == "lora"] == [("lora", 1.0, 0)]
    assert climb.best_network.rung.name == "lora" and climb.not_tried == ["full"]


def test_the_ladder_names_registered_methods_cheapest_first():
    from headstart.core import registry

    for rung in LADDER:
        registry.target("adaptations" if rung.is_network else "baselines", rung.name)
    costs = [(rung.is_trained, rung.is_network) for rung in LADDER]
    assert costs == sorted(costs)
