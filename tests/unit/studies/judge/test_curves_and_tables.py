"""Curves, crossing points and tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstart.core import config
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.definition import Study
from headstart.studies.graph import Cell
from headstart.studies.grid import System
from headstart.studies.judge import curve_tables, curves, tables
from headstart.studies.judge.curves import first_above
from headstart.studies.judge.pairing import Resamples, pair
from headstart.studies.judge.results import CellScore, MissingCell, Results
from headstart.studies.judge.verdicts import judge

LABELS = (32, 128, 512)
FULL, SVM = System(("full",)), System((), "svm")


@pytest.fixture(scope="module")
def study():
    axes = {"task": {"a|b": {}, "c": {}}, "labels": {"finetune.data.train_rows": [*LABELS]}, "method": {"full": {}}}
    axes["task"] = {"a|b": {"finetune.x": 1}, "c": {"finetune.x": 2}}
    axes["method"] = {"full": {"finetune.adaptation": "full"}}
    claims = [{"statement": "full wins", "contrast": "full > svm on mean(score)"}]
    sections = {"base": {"finetune": {}}, "axes": axes, "compare": ["method"], "baselines": ["svm"], "claims": claims}
    return config.fill(Study, {"question": "Who wins?", "output": "out", "seeds": 4, **sections})


@pytest.fixture(scope="module")
def results():
    """The SVM starts ahead and is overtaken between 32 and 128 labels; one cell failed, one has not run."""
    rng, study_results = np.random.default_rng(0), Results()
    for task in ("a|b", "c"):
        for i, labels in enumerate(LABELS):
            for system, rate in ((FULL, 0.55 + 0.15 * i), (SVM, 0.65 + 0.02 * i)):
                for seed in range(4):
                    cell = Cell(system, (task, str(labels)), seed, f"{task}-{labels}-{system.name}-{seed}")
                    if (task, labels, system, seed) == ("c", 512, FULL, 3):
                        study_results.missing.append(MissingCell(cell, "ValueError: <boom> & more (2 attempts)"))
                        continue
                    right = (rng.random(200) < rate).astype(int).tolist()
                    cost = {"flops": 1e12 if system is FULL else 0.0, "seconds": 2.0 + i, "kwh": None, "money": 0.1}
                    study_results.scores.setdefault((system, cell.context), {})[seed] = CellScore(
                        cell.node, "accuracy", {"accuracy": float(np.mean(right))}, [1] * 200, right,
                        MethodDetails(train_rows=labels), cost, task,
                    )  # fmt: skip
    study_results.missing.append(MissingCell(Cell(System(("lora",)), ("c", "512"), 0, "later"), None))
    study_results.overlaps[FULL, ("c", "32")] = {"rows": [0, 1, 2], "of": 200}
    return study_results


@pytest.fixture(scope="module")
def scores(study, results):
    return tables.scores(study, results, Resamples(300))


def cell(table, row, name):
    return table.rows[row][[column.name for column in table.columns].index(name)]


def test_the_table_has_every_system_in_every_context(scores, results):
    rows = [tuple(row[:3]) for row in scores.rows]
    assert rows[:2] == [("a|b", "32", "full"), ("a|b", "32", "svm")] and len(rows) == 13
    outcomes = results.scores[FULL, ("a|b", "32")]
    assert cell(scores, 0, "mean") == pytest.approx(100 * np.mean([o.score for o in outcomes.values()]))
    assert cell(scores, 0, "lead low") <= cell(scores, 0, "lead over svm") <= cell(scores, 0, "lead high") < 0


def test_p_is_corrected_where_the_seeds_suffice(study, results, scores):
    """Four seeds agree by chance once in eight times; corrected for six leads, no p-value can be below the level."""
    assert "p Holm" not in [column.name for column in scores.columns]
    coarse = tables.scores(study.model_copy(update={"seeds": 12}), results, Resamples(200))
    assert "p Holm" not in [column.name for column in coarse.columns], "too few resamples"
    more = tables.scores(study.model_copy(update={"seeds": 12}), results, Resamples(1000))
    assert 0 < cell(more, 0, "p Holm") <= 1 and cell(more, 1, "p Holm") is None


def test_missing_cells_are_named_and_gray(scores, results):
    failed = [i for i, row in enumerate(scores.rows) if "boom" in row[-1]]
    assert len(failed) == 1 and scores.unfinished[failed[0]] and cell(scores, failed[0], "seeds") == 3
    assert scores.rows[failed[0]][-1].startswith("failed with seeds 3")
    assert scores.rows[-2][-1] == "not run yet: seeds 0" or scores.rows[-1][-1] == "not run yet: seeds 0"
    assert [row[2:] for row in tables.missing_cells(results).rows] == [[3, "ValueError: <boom> & more (2 attempts)"]]


def test_a_seed_that_learned_nothing_is_named(study):
    def run(score, **details):
        return CellScore("node", "accuracy", {"accuracy": score}, [1] * 4, [1] * 4, MethodDetails(**details))

    majority, context = System((), "majority"), ("c", "32")
    trained = {"trainable_parameters": 5}
    study_results = Results({
        (FULL, context): {0: run(0.5, **trained), 1: run(0.75, **trained), 2: run(0.25, **trained)},
        (SVM, context): {seed: run(0.25) for seed in range(3)},
        (majority, context): {seed: run(0.5) for seed in range(3)},
    })  # fmt: skip
    table = tables.scores(study, study_results, Resamples(50))
    assert {row[2]: cell(table, i, "failed seeds") for i, row in enumerate(table.rows)} == {
        "full": "0, 2", "svm": None, "majority": None
    }  # fmt: skip


def test_scores_without_the_overlapping_items_are_in_the_table(scores, results):
    row = next(i for i, row in enumerate(scores.rows) if tuple(row[:3]) == ("c", "32", "full"))
    assert cell(scores, row, "overlap") == "3 of 200"
    kept = [np.mean(o.predictions[3:]) for o in results.scores[FULL, ("c", "32")].values()]
    assert cell(scores, row, "mean without overlap") == pytest.approx(100 * np.mean(kept))


def test_scores_are_side_by_side_along_each_numeric_axis(study, results):
    first, second = curve_tables.sheets(study, results)
    assert (first.name, first.title) == ("scores-a-b", "a|b")
    assert [column.name for column in first.columns] == ["system", "32 labels", "128 labels", "512 labels"]
    mean = 100 * np.mean([o.score for o in results.of(FULL, ("a|b", "32")).values()])
    assert first.rows[0][1].startswith(f"{mean:.1f} ± ")
    assert not any(first.unfinished) and second.unfinished[0], "a cell of full on c failed"


def test_without_a_numeric_axis_all_contexts_are_one_sheet_with_their_mean(study, results):
    words = study.model_copy(update={"axes": {"task": study.axes["task"], "labels": {"few": {}, "many": {}}}})
    (sheet,) = curve_tables.sheets(words, results)
    assert [column.name for column in sheet.columns][1:3] == ["a|b, 32", "a|b, 128"]
    means = [100 * np.mean([o.score for o in results.of(SVM, c).values()]) for c in results.contexts]
    assert sheet.columns[-1].name == "mean" and sheet.rows[1][-1] == f"{np.mean(means):.1f}"


def test_crossing_points_are_where_the_curves_meet(study, results):
    first, _ = curves.slices(study, results, "labels").values()
    (crossing,) = [c for c in curves.crossings(study, results, "labels", first) if c.system == "full"]
    assert 32 < crossing.at < 128 and crossing.low <= crossing.at <= crossing.high and crossing.fraction_above == 1.0
    table = curve_tables.crossings(study, results)
    assert len(table.rows) == 2 and table.rows[0][:4] == ["a|b", "full", "svm", "labels"]
    assert curve_tables.describe_crossing(crossing, 32, 512).startswith(f"from {crossing.at:,.0f} (")
    matrix = curve_tables.overtaking(study, results, "labels")
    assert [column.name for column in matrix.columns] == ["system", "a|b", "c"] and matrix.rows[0][0] == "full"
    never = curves.Crossing("full", "svm", None, None, None, 0.0)
    assert curve_tables.describe_crossing(never, 32, 512) == "never"


def test_a_lead_from_the_first_number_on_has_an_interval():
    from_first = curves.Crossing("full", "svm", 32.0, 32.0, None, 0.7)
    assert curve_tables.describe_crossing(from_first, 32, 2048) == "from 32 (32 to > 2,048)"
    assert curve_tables.describe_crossing(curves.Crossing("full", "svm", 32.0, 32.0, 32.0, 1.0), 32, 2048) == "from 32"


def test_a_lost_lead_shows_where_it_ends():
    lost = curves._crossing("lora", "svm", [32.0, 128.0, 512.0], [{0: 5.0}, {0: 1.0}, {0: -1.0}])
    assert lost.at is None and lost.lead == pytest.approx((32.0, 256.0)) and lost.fraction_above == 0.0
    assert curve_tables.describe_crossing(lost, 32, 512) == "up to 256"
    behind = curves._crossing("lora", "svm", [32.0, 128.0], [{0: -5.0}, {0: -1.0}])
    ahead = curves._crossing("lora", "svm", [32.0, 128.0], [{0: -5.0}, {0: 1.0}])
    assert behind.lead is None and ahead.lead is None
    assert curve_tables.describe_crossing(behind, 32, 128) == "never"
    level = curves._crossing("lora", "svm", [32.0, 128.0, 512.0], [{0: 5.0}, {0: 3.0}, {0: 0.0}])
    assert curve_tables.describe_crossing(level, 32, 512) == "up to 512", "both end at the top"
    between = curves._crossing("lora", "svm", [32.0, 128.0, 512.0, 2048.0], [{0: -1.0}, {0: 1.0}, {0: 1.0}, {0: -1.0}])
    assert curve_tables.describe_crossing(between, 32, 2048) == "64 to 1,024"


def test_runs_that_share_no_seed_along_an_axis_have_no_crossing(study):
    study_results = Results()
    for labels, seed in (("32", 0), ("128", 1)):
        for system, score in ((FULL, 0.9), (SVM, 0.8)):
            study_results.scores[system, ("c", labels)] = {
                seed: CellScore(f"{labels}{system.name}", "accuracy", {"accuracy": score}, [1], [1])
            }
    assert curves.crossings(study, study_results, "labels", [("c", "32"), ("c", "128")]) == []


def _of_metric(metric, values, context=("c", "32"), gold=None):
    """Scores of both systems by seed, full first, with losses as predictions."""
    study_results = Results()
    for system, scores in zip((FULL, SVM), values, strict=True):
        study_results.scores[system, context] = {
            seed: CellScore(
                f"{context}{system.name}{seed}",
                metric,
                {metric: score},
                gold or ["text"] * 6,
                [{"nats": score * 8 * math.log(2), "bytes": 8, "tokens": 2}] * 6,
            )
            for seed, score in enumerate(scores)
        }
    return study_results


def test_bits_have_three_decimals(study):
    study_results = _of_metric("bits_per_byte", ([1.2041, 1.2052, 1.2040], [1.2310, 1.2322, 1.2301]))
    scored = tables.scores(study, study_results, Resamples(50))
    text = dict(zip([column.name for column in scored.columns], scored.texts()[0], strict=True))
    assert text["mean"] == "1.204" and text["lead over svm"] == "+0.027"
    assert "±" in curve_tables.sheets(study, study_results)[0].rows[0][1]
    (verdict,) = judge(study, study_results, Resamples(50))
    assert "by +0.027 (" in verdict.sentence()


def test_contexts_scored_by_different_kinds_of_metric_are_not_averaged(study):
    study_results = _of_metric("bits_per_byte", ([1.2, 1.21], [1.3, 1.31]))
    other = _of_metric("accuracy", ([0.5, 0.6], [0.4, 0.3]), ("a|b", "32"), [1] * 6)
    for (system, context), runs in other.scores.items():
        study_results.scores[system, context] = {
            seed: CellScore(o.node, "accuracy", dict(o.test), [1] * 6, [1, 0, 1, 0, 1, seed])
            for seed, o in runs.items()
        }
    (verdict,) = judge(study, study_results, Resamples(50))
    assert verdict.word == "undecided" and "metrics of different kinds" in verdict.sentence()
    words = study.model_copy(update={"axes": {**study.axes, "labels": {"few": {}}}})
    (sheet,) = curve_tables.sheets(words, study_results)
    assert "mean" not in [column.name for column in sheet.columns]


def test_one_seed_gives_no_spread(study):
    study_results = _of_metric("bits_per_byte", ([1.2], [1.5]))
    (verdict,) = judge(study, study_results, Resamples(50))
    assert verdict.word == "undecided" and "One seed gives no spread over seeds" in verdict.sentence()


def test_a_claim_about_pre_training_says_that_each_ran_once(study):
    study_results = _of_metric("bits_per_byte", ([1.2, 1.21], [1.3, 1.31]))
    key = FULL, ("c", "32")
    study_results.scores[key] = {
        seed: CellScore(o.node, o.metric, o.test, o.gold, o.predictions, pretraining="pretrain-1")
        for seed, o in study_results.scores[key].items()
    }
    assert "Each pre-training ran once" in judge(study, study_results, Resamples(50))[0].sentence()
    seeded = study.model_copy(update={"seed_pretraining": True})
    assert "ran once" not in judge(seeded, study_results, Resamples(50))[0].sentence()


def test_the_direction_is_that_of_the_metric_that_is_averaged():
    """A task that is scored by bits, where lower is better, and a claim on accuracy."""
    first, second = (
        {0: CellScore(name, "bits_per_byte", {"bits_per_byte": 1.0, "accuracy": share}, [1] * 4, predictions)}
        for name, share, predictions in (("a", 1.0, [1] * 4), ("b", 0.5, [1, 1, 0, 0]))
    )
    paired = pair([first], [second], Resamples(50), "accuracy")
    assert paired.differences == {0: 0.5}


def test_sheets_of_two_numeric_axes_have_different_names(study, results):
    axes = {"length": {"128": {"finetune.x": 1}}, **{name: study.axes[name] for name in ("labels", "method")}}
    axes["length"]["512"] = {"finetune.x": 2}
    study_results = Results({
        (system, ({"a|b": "128", "c": "512"}[task], labels)): runs
        for (system, (task, labels)), runs in results.scores.items()
    })  # fmt: skip
    sheets = curve_tables.sheets(study.model_copy(update={"axes": axes}), study_results)
    assert len({sheet.name for sheet in sheets}) == len(sheets) == 5


def test_an_axis_may_begin_at_zero():
    """For example a number of shots: a system that is above everywhere is above from zero on."""
    always = curves._crossing("full", "svm", [0.0, 4.0, 16.0], [{0: 1.0, 1: 1.2}] * 3)
    assert (always.at, always.fraction_above) == (0.0, 1.0)
    later = curves._crossing("full", "svm", [0.0, 4.0, 16.0], [{0: -1.0}, {0: 1.0}, {0: 1.0}])
    assert later.at == pytest.approx(2.0)


def test_from_where_on_a_line_stays_above():
    logs = np.log(np.array([10.0, 100.0, 1000.0]))
    assert first_above(logs, np.array([-1.0, 1.0, 2.0])) == pytest.approx(np.log(10**1.5))
    assert first_above(logs, np.array([1.0, 1.0, 2.0])) == logs[0]
    assert first_above(logs, np.array([1.0, -1.0, 1.0])) == pytest.approx(np.log(10**2.5)), "the last crossing counts"
    assert math.isinf(first_above(logs, np.array([1.0, 1.0, -0.1])))


def test_the_front_holds_what_no_cheaper_one_beats(results):
    placed = curves.against_cost(results, ("c", "128"), lambda outcome: outcome.cost["seconds"], "s")
    assert {one.name: one.on_front for one in placed} == {"full": True, "svm": False}


def test_negative_scores_are_drawn_below_zero():
    study_results = Results()
    for name, score in (("full", 0.2), ("lora", -0.03)):
        outcome = CellScore(name, "matthews", {"matthews": score}, [1], [1], {}, {"flops": 2.0}, "cola")
        study_results.scores[System((name,)), ("cola",)] = {0: outcome}
    placed = curves.against_cost(study_results, ("cola",), lambda outcome: outcome.cost["flops"], "FLOPs")
    assert {one.name: one.score for one in placed} == pytest.approx({"full": 20.0, "lora": -3.0})
    assert [one.name for one in placed if one.on_front] == ["full"] and "matthews -3.0" in placed[1].label
