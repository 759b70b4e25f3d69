"""The engine: parents first, each once, retried, recorded, stopped by its budget; and workers that die."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from headstart.core import artifact, config
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies.graph import Graph, Node, home, is_finished
from headstart.studies.judge.results import lost
from headstart.studies.run import engine as study_engine
from headstart.studies.run import jobs as study_cells
from headstart.studies.run.workers import LocalWorkers


def graph_of(*rows) -> Graph:
    """Nodes by name, each with its parents' names; names stand for themselves, not for hashes."""
    graph = Graph()
    for name, *parents in rows:
        graph.add(Node("baseline", {}, tuple(parents), {}, name))
    return graph


class Stub:
    """Performs orders by a plan: a list of answers for each node; finishing writes the artifact."""

    capacity = 2

    def __init__(self, output: Path, plan=None):
        self.output, self.plan, self.began, self.waiting, self.closed = output, plan or {}, [], [], False

    def submit(self, key, order):
        assert json.loads(order)["node"]["id"] == key
        assert all(is_finished(self.output, parent) for parent in json.loads(order)["node"]["parents"])
        self.began.append(key)
        self.waiting.append(key)
        assert len(self.waiting) <= self.capacity

    def wait(self):
        key = self.waiting.pop(0)
        said = self.plan.get(key, [])
        answer = said.pop(0) if said else {"ended": "finished", "seconds": 1.0}
        if answer["ended"] == "finished":
            with artifact.staged(home(self.output, key), "cell") as staging:
                (staging / "result.json").write_text('{"cost": {"seconds": 1.0}}')
        return [(key, json.dumps(answer))]

    def close(self):
        self.closed = True


def run(graph, output, plan=None, **settings):
    stub = Stub(output, plan)
    tally = study_engine.run(graph, output, stub, lambda *_: None, **settings)
    assert stub.closed
    return tally, stub.began


FAILED = {"ended": "failed", "reason": "boom", "again": True}


def test_parents_come_first_and_nothing_is_done_twice(tmp_path):
    graph = graph_of(("text",), ("body", "text"), ("a", "body"), ("b", "body"), ("c",))
    tally, began = run(graph, tmp_path)
    assert tally.finished == 5 and sorted(began) == ["a", "b", "body", "c", "text"]
    again, began = run(graph, tmp_path)
    assert again.finished == 5 and began == []
    (tmp_path / "cells" / "b" / "headstart.json").unlink()
    assert run(graph, tmp_path)[1] == ["b"]


def test_a_failure_is_tried_again_then_recorded_with_its_reason(tmp_path):
    graph = graph_of(("a",), ("b", "a"), ("c", "b"), ("d",))
    plan = {"a": [dict(FAILED)], "b": [dict(FAILED), dict(FAILED)]}
    tally, began = run(graph, tmp_path, plan, retries=1)
    assert began.count("a") == 2 and began.count("b") == 2 and "c" not in began
    assert tally.finished == 2 and tally.failed == {"b": "boom"} and tally.skipped == ["c"]
    assert study_engine.reason(tmp_path, "b") == "boom (2 attempts)"
    reasons = lost(graph, {"b": "boom"})
    assert reasons["c"] == "b, which it needs, failed: boom" and "d" not in reasons
    healed, began = run(graph, tmp_path)
    assert healed.finished == 4 and began == ["b", "c"] and study_engine.reason(tmp_path, "b") is None


def test_what_another_attempt_cannot_help_is_not_tried_again(tmp_path):
    tally, began = run(graph_of(("a",)), tmp_path, {"a": [{**FAILED, "again": False}]}, retries=5)
    assert began == ["a"] and tally.failed == {"a": "boom"}


def test_past_the_budget_nothing_is_begun(tmp_path):
    graph = graph_of(*[(f"n{place}",) for place in range(10)])
    tally, _ = run(graph, tmp_path, budget_seconds=4.0)
    assert 4 <= tally.finished <= 5 and len(tally.unbegun) == 10 - tally.finished
    tally, began = run(graph, tmp_path, budget_seconds=4.0)
    assert began == [], "what earlier runs took counts"
    assert run(graph, tmp_path, budget_seconds=100.0)[0].finished == 10


def test_attempts_that_failed_count_towards_the_budget(tmp_path):
    graph, slow = graph_of(("a",), ("b",), ("c",)), {**FAILED, "seconds": 3.0}
    tally, _ = run(graph, tmp_path, {"a": [dict(slow), dict(slow)]}, retries=1, budget_seconds=100.0)
    assert tally.failed and study_engine.seconds_spent(graph, tmp_path) == 2 * 1.0 + 2 * 3.0
    assert run(graph, tmp_path, budget_seconds=7.0)[1] == [], "eight of seven seconds are spent"
    tally, _ = run(graph, tmp_path, {"a": [dict(slow)]}, budget_seconds=100.0)
    assert study_engine.seconds_spent(graph, tmp_path) == 2 * 1.0 + 3 * 3.0


def test_rows_that_were_changed_meanwhile_are_not_published_under_the_old_address(tmp_path):
    rows = "text,label\n" + "".join(f"a {'good' if n % 2 else 'bad'} day {n},{n % 2}\n" for n in range(40))
    data = {"validation": 10}
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
        data[name] = str(tmp_path / f"{name}.csv")
    reads = {name: artifact.sha256(tmp_path / f"{name}.csv")[:16] for name in ("train", "test")}
    recipe = {"baseline": "majority", "task": {"kind": "classify", "text": ["text"], "label": "label"}, "data": data}
    node = Node("baseline", recipe, (), reads, "baseline-1")
    (tmp_path / "test.csv").write_text(rows + "another,1\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    said = json.loads(study_cells.run_job(study_cells.order(node, tmp_path / "out")))
    assert "test.csv was changed after the study began" in said["reason"] and not said["again"]
    (tmp_path / "test.csv").write_text(rows, encoding="utf-8")
    assert json.loads(study_cells.run_job(study_cells.order(node, tmp_path / "out")))["ended"] == "finished"


def test_errors_are_told_and_say_whether_trying_again_helps(tmp_path):
    broken = Node("baseline", {"baseline": "majority"}, (), {}, "broken")
    said = json.loads(study_cells.run_job(study_cells.order(broken, tmp_path)))
    assert said["ended"] == "failed" and not said["again"] and "task is missing" in said["reason"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_cell_tried_again(tmp_path):
    """With real workers: one sleeps in its cell until it is killed; another waits for a lock that is held."""
    (tmp_path / "rows.csv").write_text("text,label\ngood,1\nbad,0\n", encoding="utf-8")
    data = {"train": f"{tmp_path}/rows.csv", "validation": f"{tmp_path}/rows.csv", "test": f"{tmp_path}/rows.csv"}
    recipe = {"baseline": "majority", "task": {"kind": "classify", "text": ["text"], "label": "label"}, "data": data}
    held = Node("baseline", recipe, (), {}, "held")
    work = tmp_path / "work" / "held"
    work.mkdir(parents=True)
    from headstart.core.lock import FolderLock

    lock = FolderLock(work)
    workers = LocalWorkers(1, 1)
    try:
        workers.submit("held", study_cells.order(held, tmp_path))
        victim = next(iter(workers._busy.values())).process.pid
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        ((key, answer),) = workers.wait()
        assert key == "held" and "signal 9 (SIGKILL)" in answer and json.loads(answer)["again"]
        workers.submit("held", study_cells.order(held, tmp_path))
        time.sleep(0.5)
        assert not is_finished(tmp_path, "held"), "another process holds it"
        del lock
        ((_, answer),) = workers.wait()
        assert json.loads(answer)["ended"] == "finished" and is_finished(tmp_path, "held")
        assert not work.exists()
    finally:
        workers.close()


def test_an_adaptation_that_cannot_serve_is_left_out_with_its_reason(way, recipe_of, tmp_path):
    recipe = recipe_of["finetune"](way, output="cell", adaptation="zero_shot", compare_with=[])
    node = Node("finetune", config.to_dict(config.fill(FinetuneRecipe, recipe)), (), {}, "finetune-1")
    answer = json.loads(study_cells.run_job(study_cells.order(node, tmp_path)))
    found = json.loads((home(tmp_path, node.id) / "result.json").read_text())
    assert answer["ended"] == "finished" and list(found) == ["left_out"] and found["left_out"]
