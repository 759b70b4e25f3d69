"""The rule of the search: halving of rates, early ends, the reasons to stop, and which method is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from headstart.core import config
from headstart.core.errors import DataError
from headstart.evaluation.cost import PriceTag
from headstart.stages.finetune.recipe import AdaptFirst, FinetuneRecipe
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.advise.cells import CellFailed, CellResult
from headstart.studies.advise.methods import METHODS, Method, adapting_first, distilling, epochs_of, row_passes
from headstart.studies.advise.prior import PRIORS, Belief, Priors
from headstart.studies.advise.rounds import ROUNDS
from headstart.studies.advise.search import Clock, Search, keep_half

ROWS = 400
CHEAP = (Method("svm", is_network=False), Method("linear_probe"))
FIRST, SECOND, THIRD = (Method(name, is_trained=True, rates=(1.0, 2.0, 4.0)) for name in ("contrast", "lora", "full"))
FILLED = config.fill(
    FinetuneRecipe,
    {
        "output": "out", "model": "model", "task": {"kind": "classify"}, "adaptation": {"name": "full"},
        "data": {"train": "a.csv", "validation": 0.1, "test": 0.2},
    },
)  # fmt: skip


@dataclass
class Bench:
    """Cells of made-up methods: each has an accuracy, and a best learning rate at which its validation is highest."""

    accuracy: dict[str, float]
    best_rate: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)
    adapting: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    ran: list[tuple[str, float | None, int]] = field(default_factory=list)
    rows: int = ROWS
    priors: Priors = field(default_factory=dict)

    def run(self, method: Method, rate: float | None, number: int) -> CellResult:
        self.ran.append((method.name, rate, number))
        if method.name in self.broken:
            raise CellFailed(f"{method.name} failed: the disk is full")
        if method.name in self.left_out:
            return CellResult(left_out=self.left_out[method.name])
        wrong = np.random.default_rng([number, 7]).permutation(self.rows) >= self.accuracy[method.name] * self.rows
        predictions = ["b" if w else "a" for w in wrong]
        validation = 1.0 if rate is None else 1 - abs(np.log2(rate / self.best_rate)) / 10
        adapted = {"is_counted": True, "cost": {"seconds": self.adapting.get(method.name, 0.0)}, "step": 1}
        return CellResult(
            "accuracy", ["a"] * self.rows, predictions, float(1 - wrong.mean()), validation,
            self.seconds.get(method.name, 1.0), PriceTag(), MethodDetails(adapted=adapted),
        )  # fmt: skip

    def search(self, *methods: Method, budget: float = 1000.0, forecast: float | None = 1.0) -> Search:
        search = Search(
            self.run, lambda method: list(method.rates) or [None], lambda *_: forecast, Clock(budget), self.priors
        )
        search.try_methods([*CHEAP, *methods])
        return search


def test_the_better_half_of_the_rates_stays():
    assert keep_half({1.0: 0.5, 2.0: 0.9, 4.0: 0.7}) == [2.0, 4.0]
    assert keep_half({1.0: 0.5, 2.0: 0.9}) == [2.0]
    assert keep_half({1.0: 0.5}) == [1.0]
    assert keep_half({1.0: 0.5, 2.0: 0.5}) == [1.0]


def test_rates_are_halved_after_each_round_by_validation_alone():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8}, best_rate=4.0)
    search = bench.search(FIRST)
    rates = [[rate for name, rate, number in bench.ran if (name, number) == ("contrast", n)] for n in range(ROUNDS)]
    assert rates == [[1.0, 2.0, 4.0], [4.0, 2.0], [4.0]]
    assert search.results[-1].rate == 4.0 and sorted(search.results[-1].rounds) == [0, 1, 2]


def test_a_clearly_worse_method_ends_after_its_first_round_and_two_of_them_end_the_search():
    bench = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.6, "lora": 0.6, "full": 0.9})
    search = bench.search(FIRST, SECOND, THIRD)
    outcome = search.finished([*CHEAP, FIRST, SECOND, THIRD])
    assert {number for name, _, number in bench.ran if name == "lora"} == {0}
    assert "ends below 0.5 points" in outcome.results[-1].note
    assert outcome.not_tried == ["full"] and "could not gain 0.5 points" in outcome.stopped
    assert outcome.best_network.method.name == "linear_probe"


def test_a_gain_in_between_resets_the_count_of_futile_methods():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6, "contrast": 0.4, "lora": 0.8, "full": 0.9})
    outcome = bench.search(FIRST, SECOND, THIRD).finished([])
    assert outcome.best.method.name == "full" and outcome.stopped == "All methods were tried."


def test_time_that_is_left_decides_whether_a_method_starts():
    accuracy = {"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8}
    # Three cells of each cheap method take 6 s; a run of 10 s and its final training of 15 s need 25 s more.
    late = Bench(accuracy).search(FIRST, budget=30.9, forecast=10.0).finished([*CHEAP, FIRST])
    assert late.not_tried == ["contrast"] and "does not allow a run of contrast" in late.stopped
    slow = Bench(accuracy, seconds={"contrast": 10.0})
    outcome = slow.search(FIRST, budget=31.1, forecast=10.0).finished([*CHEAP, FIRST])
    assert [rate for name, rate, _ in slow.ran if name == "contrast"] == [1.0]
    assert outcome.best_network.method.name == "contrast" and "another run of contrast" in outcome.stopped


def test_a_slow_probe_ends_after_one_round():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6}, seconds={"linear_probe": 100.0})
    outcome = bench.search(FIRST, budget=120.0).finished([*CHEAP, FIRST])
    assert [cell for cell in bench.ran if cell[0] == "linear_probe"] == [("linear_probe", None, 0)]
    assert "another run of linear_probe" in outcome.stopped and outcome.not_tried == ["contrast"]


def test_a_cheaper_method_is_kept_if_the_lead_is_below_half_a_point():
    near = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.8025}).search(FIRST).finished([])
    assert near.best_network.method.name == "linear_probe"
    far = Bench({"svm": 0.5, "linear_probe": 0.8, "contrast": 0.81}).search(FIRST).finished([])
    assert far.best_network.method.name == "contrast"


def test_the_model_is_a_network_also_if_a_baseline_is_better():
    outcome = Bench({"svm": 0.9, "linear_probe": 0.6, "contrast": 0.7}).search(FIRST).finished([])
    assert outcome.best.method.name == "svm" and outcome.best_network.method.name == "contrast"


def test_nothing_is_trained_if_nothing_is_left_to_gain():
    outcome = Bench({"svm": 0.5, "linear_probe": 0.9975}).search(FIRST).finished([*CHEAP, FIRST])
    assert "less than 0.5 points to gain" in outcome.stopped and outcome.not_tried == ["contrast"]


def test_adapting_first_is_compared_with_the_same_network_and_tried_after_futile_methods(tmp_path):
    """It runs although two methods were futile, and although a baseline is the best of all."""
    accuracy = {"svm": 0.9, "linear_probe": 0.7, "contrast": 0.6, "lora": 0.6, "adapt_first": 0.75}
    bench = Bench(accuracy, seconds={"adapt_first": 5.0})
    search = bench.search(FIRST, SECOND, THIRD, budget=1000.0)
    best = search.best_network
    assert search.stopped and best.method.name == "linear_probe"
    section = AdaptFirst(texts=["a.txt"], budget="60 s", folder=tmp_path)
    last = adapting_first(best.method, best.rate, FILLED, section)
    search.try_last(last)
    outcome = search.finished([*CHEAP, FIRST, SECOND, THIRD, last])
    result = outcome.results[-1]
    assert result.method.name == "adapt_first" and result.method.adaptation == result.compared_with == "linear_probe"
    assert result.lead.difference == pytest.approx(0.05) and len(result.rounds) == ROUNDS
    assert outcome.best.method.name == "svm" and outcome.best_network is result
    assert outcome.not_tried == ["full"] and "full was not tried" in outcome.stopped


def test_adapting_first_needs_time_for_its_pretraining_but_only_for_the_first_cell(tmp_path):
    accuracy = {"svm": 0.5, "linear_probe": 0.7, "adapt_first": 0.75}
    section = AdaptFirst(texts=["a.txt"], budget="60 s", folder=tmp_path)
    # Six cheap cells take 6 s; the first cell is forecast with 60 + 1 s, and the final training with 1.5 s.
    for budget, ran in ((68.4, 0), (68.6, 1)):
        bench = Bench(accuracy, seconds={"adapt_first": 61.0}, adapting={"adapt_first": 60.0})
        search = bench.search(budget=budget)
        search.try_last(adapting_first(CHEAP[1], None, FILLED, section))
        assert len([cell for cell in bench.ran if cell[0] == "adapt_first"]) == ran
    enough = Bench(accuracy, seconds={"adapt_first": 61.0}, adapting={"adapt_first": 60.0}).search(budget=1000.0)
    enough.try_last(adapting_first(CHEAP[1], None, FILLED, section))
    assert enough.results[-1].cell_seconds == 1.0 and enough.results[-1].seconds == 183.0


def test_with_few_rows_a_method_that_is_seldom_better_is_not_tried():
    accuracy = {"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8, "lora": 0.9}
    few = Bench(accuracy, rows=10, priors=PRIORS).search(FIRST, SECOND).finished([*CHEAP, FIRST, SECOND])
    assert few.not_tried == ["lora"] and few.best_network.method.name == "contrast"
    assert "lora was not tried: with so few held-out rows, the expected gain over contrast is 0." in few.stopped
    many = Bench(accuracy, priors=PRIORS).search(FIRST, SECOND).finished([*CHEAP, FIRST, SECOND])
    assert many.best_network.method.name == "lora" and many.stopped == "All methods were tried."


def test_few_rows_do_not_outweigh_what_is_known_and_many_do():
    # Of ten rows in each round, contrast is right on six and the linear probe on seven.
    accuracy = {"svm": 0.5, "linear_probe": 0.7, "contrast": 0.6}
    few = Bench(accuracy, rows=10, priors=PRIORS).search(FIRST).finished([])
    assert few.results[-1].lead.difference == pytest.approx(-0.1)
    assert few.results[-1].belief.mean > few.results[-1].lead.difference
    many = Bench(accuracy, priors=PRIORS).search(FIRST).finished([])
    assert many.best_network.method.name == "linear_probe" and many.results[-1].is_futile


def test_a_measurement_gains_less_the_less_it_tells():
    belief = Belief(-0.04, 0.06)
    gains = [belief.expected_gain(error) for error in (0.0, 0.03, 0.1, 1.0)]
    assert (
        gains == sorted(gains, reverse=True) and gains[0] > 0.005 > gains[2] and gains[3] == pytest.approx(0, abs=1e-6)
    )
    assert Belief(0.05, 0.06).expected_gain(1.0) == pytest.approx(0.05, abs=1e-3)


def test_a_student_is_compared_with_the_best_network(tmp_path):
    bench = Bench({"svm": 0.9, "linear_probe": 0.7, "contrast": 0.8, "distillation": 0.85})
    search = bench.search(FIRST)
    student = distilling(search.best_network.method, 2.0, FILLED, tmp_path / "texts.parquet", 900, 100)
    search.try_last(student)
    result = search.finished([]).best_network
    assert result.method is student and result.compared_with == "contrast"
    assert result.lead.difference == pytest.approx(0.05) and search.best.method.name == "svm"


def test_a_student_reads_about_as_many_rows_as_full_fine_tuning(tmp_path):
    # The recipe has ten epochs of 100 labeled rows.
    full, texts = METHODS[-1], tmp_path / "texts.parquet"
    for count, epochs in ((900, 1), (100, 5), (10, 9)):
        student = distilling(full, None, FILLED, texts, count, 100)
        assert epochs_of(student, FILLED) == epochs and epochs_of(full, FILLED) == 10
        assert row_passes(student, FILLED, 100, 20, 30) > row_passes(full, FILLED, 100, 20, 30)


def test_time_that_is_kept_for_the_last_method_is_not_used_by_others():
    bench = Bench({"svm": 0.5, "linear_probe": 0.6, "contrast": 0.8})
    search = Search(bench.run, lambda method: list(method.rates) or [None], lambda *_: 1.0, Clock(20.0, reserved=12.0))
    search.try_methods([*CHEAP, FIRST])
    assert "does not allow a run of contrast" in search.stopped
    search.try_last(FIRST)
    assert search.results[-1].method is FIRST


def test_methods_that_fail_or_do_not_apply_are_passed_over():
    bench = Bench({"svm": 0.5, "lora": 0.7}, left_out={"linear_probe": "no vectors"}, broken=("contrast",))
    outcome = bench.search(FIRST, SECOND).finished([])
    assert outcome.best_network.method.name == "lora"
    assert [r.note for r in outcome.results if not r.rounds] == ["no vectors", "contrast failed: the disk is full."]


def test_without_a_network_the_reasons_are_reported():
    with pytest.raises(DataError, match=r"no network could be trained.*linear_probe: no vectors"):
        Bench({"svm": 0.5}, left_out={"linear_probe": "no vectors"}).search().finished([])


def test_the_first_network_runs_once_whatever_the_time():
    bench = Bench({"svm": 0.5, "lora": 0.7}, left_out={"linear_probe": "no vectors"})
    outcome = bench.search(SECOND, THIRD, budget=0.0).finished([SECOND, THIRD])
    assert [cell for cell in bench.ran if cell[0] == "lora"] == [("lora", 1.0, 0)]
    assert outcome.best_network.method.name == "lora" and outcome.not_tried == ["full"]


def test_the_list_names_registered_methods_cheapest_first():
    from headstart.core import registry

    for method in METHODS:
        registry.target("adaptations" if method.is_network else "baselines", method.name)
    costs = [(method.is_trained, method.is_network) for method in METHODS]
    assert costs == sorted(costs)
