"""What is not trained has no training rows and no seed: its test sets are the units, if they share no rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headstart.core import config, registry
from headstart.core.data import Examples
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.definition import Study
from headstart.studies.graph import Cell, Graph, Node
from headstart.studies.grid import System
from headstart.studies.judge import results as results_of_study
from headstart.studies.judge import tables
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import CellScore, Results
from headstart.studies.judge.verdicts import Verdict, judge
from headstart.studies.run import jobs

EXAMPLES = 100
NAMES = ("one", "other")


def study_of(tasks: Sequence[str], languages: Sequence[str] = ("en",), seeds: int = 3, **claim: object) -> Study:
    axes = {
        "task": {task: {"finetune.x": task} for task in tasks},
        "language": {language: {"finetune.y": language} for language in languages},
        "start": {name: {"finetune.model": name} for name in NAMES},
    }
    return config.fill(Study, {
        "question": "?", "output": "out", "base": {"finetune": {}}, "axes": axes, "compare": ["start"],
        "baselines": [], "reference": "other", "seeds": seeds,
        "claims": [{"statement": "so it is", "contrast": "one > other", **claim}],
    })  # fmt: skip


class World:
    """Rows that two systems answer, each row in the same way wherever it occurs."""

    def __init__(self, seed: int = 0, task_sd: float = 0.05, gain: float = 0.0) -> None:
        self.rng, self.task_sd, self.gain = np.random.default_rng(seed), task_sd, gain

    def source(self, name: str, count: int = EXAMPLES) -> list[tuple[str, int, int, int]]:
        """Return rows of one source: a hash, the gold value, and whether each system is right."""
        lead = self.gain + self.rng.normal(0, self.task_sd)
        gold = self.rng.integers(0, 2, count)
        right = [self.rng.random(count) < 0.7 + sign * lead / 2 for sign in (1, -1)]
        return [(f"{name} {i}", int(gold[i]), int(right[0][i]), int(right[1][i])) for i in range(count)]


def add(results: Results, context: tuple[str, ...], rows: list[tuple[str, int, int, int]], seeds: int = 3) -> None:
    """Add both systems in a context, untrained: all seeds are copies of one run."""
    gold, hashes = [row[1] for row in rows], frozenset(row[0] for row in rows)
    for side, name in enumerate(NAMES):
        answers = [row[1] if row[2 + side] else 1 - row[1] for row in rows]
        score = {"accuracy": float(np.mean([row[2 + side] for row in rows]))}
        node = f"{'-'.join(context)}-{name}"
        cell = CellScore(node, "accuracy", score, gold, answers, group="train", test_rows=hashes)
        results.scores[System((name,)), context] = dict.fromkeys(range(seeds), cell)


def trained(results: Results, systems: Sequence[str] = NAMES, by_context: bool = False) -> Results:
    """Return the same scores of systems that were trained, on rows of one file or of one file for each context."""
    return Results({
        (system, context): {
            seed: replace(cell, test_rows=None, group=str(context) if by_context else cell.group)
            if system.levels[0] in systems else cell
            for seed, cell in runs.items()
        }
        for (system, context), runs in results.scores.items()
    })  # fmt: skip


def judged(study: Study, results: Results, samples: int = 200) -> Verdict:
    return judge(study, results, Resamples(samples))[0]


def sts_like(gain: float = 0.3) -> Results:
    """Five sets of several years, one that was drawn from all of these, and one of its own."""
    world, results = World(1, gain=gain), Results()
    years = {f"sts{year}": world.source(f"sts{year}") for year in range(12, 17)}
    drawn = [row for rows in years.values() for row in rows[:20]]
    for name, rows in {"stsb": drawn, **years, "sick": world.source("sick")}.items():
        add(results, (name, "en"), rows)
    return results


def without(results: Results, task: str) -> Results:
    return Results({key: runs for key, runs in results.scores.items() if key[1][0] != task})


TASKS = ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sick")


def test_test_sets_that_share_rows_are_one_unit_and_others_are_units_of_their_own():
    verdict = judged(study_of(TASKS), sts_like())
    assert (verdict.comparison.units, verdict.seeds) == (2, 1), "stsb connects the sets that it was drawn from"
    assert verdict.word == "undecided" and verdict.needed is None
    sentence = verdict.sentence()
    assert "Neither side is trained, so all seeds are one run" in sentence
    assert "test sets that share no rows: 2 in 7 contexts" in sentence
    assert "More seeds would not change the verdict" in sentence and "more seeds would decide" not in sentence
    apart = judged(study_of(TASKS), without(sts_like(), "stsb"))
    assert apart.comparison.units == 6, "they have the training rows of one file, which nothing reads"
    assert apart.word == "confirmed" and apart.comparison.p_better == pytest.approx(1 / 64)
    assert judged(study_of(TASKS), without(sts_like(-0.3), "stsb")).word == "refuted"


def test_where_one_side_is_trained_the_training_rows_count():
    one_file = judged(study_of(TASKS), trained(sts_like(), ["one"]))
    assert one_file.comparison.units == 3, "three seeds that draw from one file"
    assert judged(study_of(TASKS), trained(sts_like(), ["one"], by_context=True)).comparison.units == 7 * 3
    assert "Neither side is trained" not in one_file.sentence()


def test_seeds_are_no_units_in_the_table_either():
    results, study = sts_like(), study_of(TASKS, seeds=3)
    table = tables.scores(study, results, Resamples(100))
    p_values = [row[[column.name for column in table.columns].index("p seeds")] for row in table.rows]
    assert p_values.count(1.0) == len(TASKS) and p_values.count(None) == len(TASKS), "one run has no spread"


def test_translations_have_the_same_gold_values_and_are_one_unit():
    world, results = World(2), Results()
    for task in ("a", "b"):
        rows = world.source(task)
        for language in ("en", "de"):
            add(results, (task, language), [(f"{language} {name}", *values) for name, *values in rows])
    assert judged(study_of(("a", "b"), ("en", "de")), results).comparison.units == 2


def test_a_constant_gold_value_does_not_identify_a_test_set():
    world, results = World(3), Results()
    for task in ("a", "b"):
        add(results, (task, "en"), [(name, 1, *right) for name, _, *right in world.source(task)])
    assert judged(study_of(("a", "b")), results).comparison.units == 2


def test_leads_are_independent_if_neither_context_shares_rows():
    world, results = World(4), Results()
    common = world.source("common")
    for task in ("a", "b", "c"):
        add(results, (task, "en"), world.source(f"en {task}"))
        add(results, (task, "de"), [*common[:50], *world.source(f"de {task}")] if task != "c" else world.source("de c"))
    claim = {"where": {"language": "en"}, "versus": {"language": "de"}}
    assert judged(study_of(("a", "b", "c"), ("en", "de"), **claim), results).comparison.units == 2


def null_study(number: int) -> Results:
    """Two untrained systems that are equal but for what each source favors: three sets share rows, five do not."""
    world, results = World(number), Results()
    pool = world.source("pool", 150)
    for i in range(3):
        add(results, (f"shared{i}", "en"), [pool[j] for j in world.rng.permutation(150)[:EXAMPLES]])
    for i in range(5):
        add(results, (f"own{i}", "en"), world.source(f"own{i}"))
    return results


def count_confirmed(studies: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many null studies are confirmed, and how many if each seed and context were a unit."""
    for name in ("power", "seeds_needed"):  # they do not change the verdict, and take most of the time
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    study = study_of([*(f"shared{i}" for i in range(3)), *(f"own{i}" for i in range(5))])
    words: list[list[str]] = [[], []]
    for number in range(studies):
        results, resamples = null_study(number), Resamples(200)
        for found, cells in zip(words, (results, trained(results, by_context=True)), strict=True):
            (verdict,) = judge(study, cells, resamples)
            found.append(verdict.word)
            assert verdict.comparison.units == (6 if cells is results else 24)
    return words[0].count("confirmed"), words[1].count("confirmed")


def test_at_most_one_in_twenty_of_200_null_studies_is_confirmed(monkeypatch):
    confirmed, naive = count_confirmed(200, monkeypatch)
    assert confirmed <= 0.05 * 200
    assert naive > 0.1 * 200, "copies and shared rows make a difference, so the simulation can fail"


@pytest.mark.long
def test_at_most_one_in_twenty_of_2000_null_studies_is_confirmed(monkeypatch):
    confirmed, _ = count_confirmed(2000, monkeypatch)
    assert confirmed <= stats.binom.ppf(0.99, 2000, 0.05)


def finished(folder: Path, **values: object) -> Graph:
    """Write a finished cell that starts from a pre-training of the study."""
    graph = Graph()
    node = graph.add(Node("finetune", {}, ("pretrain-1",), {"train": "t"}, "finetune-1"))
    graph.cells.append(Cell(System(("one",)), ("a",), 0, node.id))
    payload = {"metric": "accuracy", "test": {"accuracy": 1.0}, "gold": [1], "predictions": [1], "details": {}}
    results_of_study.result.write(
        folder / "cells" / node.id, {**payload, "cost": {}, **values}, "cell of a study", node=node.to_dict()
    )
    return graph


def test_a_cell_with_hashes_of_its_test_rows_is_one_of_an_untrained_system(tmp_path):
    key = System(("one",)), ("a",)
    graph = finished(tmp_path, rows=["r1", "r2"])
    assert results_of_study.read(graph, tmp_path, {}).scores[key][0].test_rows == {"r1", "r2"}
    seeded = results_of_study.read(graph, tmp_path, {}, one_draw=True).scores[key][0]
    assert seeded.test_rows is None, "each seed has its own network, so seeds are units"
    older = results_of_study.read(finished(tmp_path / "older"), tmp_path / "older", {}).scores[key][0]
    assert older.test_rows is None


def task_of(section: dict[str, object]):
    return registry.build("tasks", config.resolve_section("tasks", "task", section, []))


def prompt(shots: int):
    return task_of({"kind": "prompt", "text": ["text"], "label": "label", "shots": shots})


def test_what_reads_labeled_rows_is_not_untrained():
    embed = task_of({"kind": "embed", "texts": ["a", "b"], "label": "score"})
    for details, task, expected in [
        (MethodDetails(trainable_parameters=0), embed, True),
        (MethodDetails(trainable_parameters=7), embed, False),
        (MethodDetails(trainable_parameters=0, decision={"threshold": 0.4}), embed, False),
        (MethodDetails(trainable_parameters=0, adapted={"step": 3}), embed, False),
        (MethodDetails(trainable_parameters=0), prompt(shots=0), True),
        (MethodDetails(trainable_parameters=0), prompt(shots=2), False),
    ]:
        assert jobs._is_untrained(details, task) is expected, (details, task)


def test_a_baseline_that_reads_no_rows_publishes_its_test_rows_and_others_do_not(tmp_path, monkeypatch):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("good 1 0\nbad 0 1\nday 1 1\n", encoding="utf-8")
    monkeypatch.setenv("HEADSTART_GLOVE", str(vectors))
    data = {"validation": 4, "allow_overlap": True}
    for name in ("train", "test"):
        lines = [f"a {'good' if n % 2 else 'bad'} day,a day {n},{n / 20}" for n in range(20)]
        (tmp_path / f"{name}.csv").write_text("one,two,score\n" + "\n".join(lines) + "\n", encoding="utf-8")
        data[name] = str(tmp_path / f"{name}.csv")
    (tmp_path / "out").mkdir()
    task = {"kind": "embed", "texts": ["one", "two"], "label": "score"}
    for baseline in ("glove_cosine", "majority"):
        node = Node("baseline", {"baseline": baseline, "task": task, "data": data}, (), {}, baseline)
        answer = json.loads(jobs.run_job(jobs.serialize_job(node, tmp_path / "out")))
        assert answer["ended"] == "finished", answer
    rows = results_of_study.read_cell(tmp_path / "out", "glove_cosine")["rows"]
    assert len(set(rows)) == 20
    assert "rows" not in results_of_study.read_cell(tmp_path / "out", "majority")


def test_rows_are_the_same_in_other_case_and_punctuation_and_differ_by_any_column():
    rows = Examples({"a": ["A man, a plan.", "a man a plan"], "b": ["yes", "no"]}, [1, 2])
    same = Examples({"x": ["a MAN - a plan"], "y": ["Yes!"]}, [5])
    first, second = jobs.hash_rows(rows)
    assert jobs.hash_rows(same) == [first] and second != first
    assert jobs.hash_rows(Examples({"a": []}, [])) == []
