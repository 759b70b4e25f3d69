"""The engine: parents first, each cell once, retries, failures on record, a budget; and workers that die."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from headstart.core import artifact, config, file_hashes
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies.graph import Graph, Node, cell_dir, is_finished
from headstart.studies.judge.results import lost
from headstart.studies.run import engine as study_engine
from headstart.studies.run import jobs
from headstart.studies.run.workers import LocalWorkers


def graph_of(*rows) -> Graph:
    """Nodes by name, each with the names of its parents; the names are not hashes."""
    graph = Graph()
    for name, *parents in rows:
        graph.add(Node("baseline", {}, tuple(parents), {}, name))
    return graph


class StubExecutor:
    """Answers jobs by a plan, a list of answers for each node; a finished job writes its artifact."""

    capacity = 2

    def __init__(self, output: Path, plan=None):
        self.output, self.plan, self.started, self.waiting, self.closed = output, plan or {}, [], [], False

    def submit(self, key, job):
        assert json.loads(job)["node"]["id"] == key
        assert all(is_finished(self.output, parent) for parent in json.loads(job)["node"]["parents"])
        self.started.append(key)
        self.waiting.append(key)
        assert len(self.waiting) <= self.capacity

    def wait(self):
        key = self.waiting.pop(0)
        planned = self.plan.get(key, [])
        answer = planned.pop(0) if planned else {"ended": "finished", "seconds": 1.0}
        if answer["ended"] == "finished":
            with artifact.staged(cell_dir(self.output, key), "cell") as staging:
                (staging / "result.json").write_text('{"cost": {"seconds": 1.0}}')
        return [(key, json.dumps(answer))]

    def close(self):
        self.closed = True


def run(graph, output, plan=None, **settings):
    stub = StubExecutor(output, plan)
    summary = study_engine.run(graph, output, stub, lambda *_: None, **settings)
    assert stub.closed
    return summary, stub.started


FAILED = {"ended": "failed", "reason": "boom", "again": True}


def test_parents_run_first_and_nothing_runs_twice(tmp_path):
    graph = graph_of(("text",), ("body", "text"), ("a", "body"), ("b", "body"), ("c",))
    summary, started = run(graph, tmp_path)
    assert summary.finished == 5 and sorted(started) == ["a", "b", "body", "c", "text"]
    again, started = run(graph, tmp_path)
    assert again.finished == 5 and started == []
    (tmp_path / "cells" / "b" / "headstart.json").unlink()
    assert run(graph, tmp_path)[1] == ["b"]


def test_a_failed_cell_is_retried_then_recorded_with_its_reason(tmp_path):
    graph = graph_of(("a",), ("b", "a"), ("c", "b"), ("d",))
    plan = {"a": [dict(FAILED)], "b": [dict(FAILED), dict(FAILED)]}
    summary, started = run(graph, tmp_path, plan, retries=1)
    assert started.count("a") == 2 and started.count("b") == 2 and "c" not in started
    assert summary.finished == 2 and summary.failed == {"b": "boom"} and summary.skipped == ["c"]
    assert study_engine.reason(tmp_path, "b") == "boom (2 attempts)"
    reasons = lost(graph, {"b": "boom"})
    assert reasons["c"] == "b, which it needs, failed: boom" and "d" not in reasons
    again, started = run(graph, tmp_path)
    assert again.finished == 4 and started == ["b", "c"] and study_engine.reason(tmp_path, "b") is None


def test_a_cell_that_would_fail_again_is_not_retried(tmp_path):
    summary, started = run(graph_of(("a",)), tmp_path, {"a": [{**FAILED, "again": False}]}, retries=5)
    assert started == ["a"] and summary.failed == {"a": "boom"}


def test_no_cell_starts_after_the_budget_is_used_up(tmp_path):
    graph = graph_of(*[(f"n{number}",) for number in range(10)])
    summary, _ = run(graph, tmp_path, budget_seconds=4.0)
    assert 4 <= summary.finished <= 5 and len(summary.not_started) == 10 - summary.finished
    summary, started = run(graph, tmp_path, budget_seconds=4.0)
    assert started == [], "the time of earlier runs counts"
    assert run(graph, tmp_path, budget_seconds=100.0)[0].finished == 10


def test_failed_attempts_count_towards_the_budget(tmp_path):
    graph, slow = graph_of(("a",), ("b",), ("c",)), {**FAILED, "seconds": 3.0}
    summary, _ = run(graph, tmp_path, {"a": [dict(slow), dict(slow)]}, retries=1, budget_seconds=100.0)
    assert summary.failed and study_engine.seconds_spent(graph, tmp_path) == 2 * 1.0 + 2 * 3.0
    assert run(graph, tmp_path, budget_seconds=7.0)[1] == [], "eight of seven seconds are used"
    summary, _ = run(graph, tmp_path, {"a": [dict(slow)]}, budget_seconds=100.0)
    assert study_engine.seconds_spent(graph, tmp_path) == 2 * 1.0 + 3 * 3.0


def test_rows_changed_during_the_run_are_not_published_under_the_old_address(tmp_path):
    rows = "text,label\n" + "".join(f"a {'good' if n % 2 else 'bad'} day {n},{n % 2}\n" for n in range(40))
    data = {"validation": 10, "allow_overlap": True}
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
        data[name] = str(tmp_path / f"{name}.csv")
    reads = {name: file_hashes.sha256(tmp_path / f"{name}.csv")[:16] for name in ("train", "test")}
    recipe = {"baseline": "majority", "task": {"kind": "classify", "text": ["text"], "label": "label"}, "data": data}
    node = Node("baseline", recipe, (), reads, "baseline-1")
    (tmp_path / "test.csv").write_text(rows + "another,1\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    answer = json.loads(jobs.run_job(jobs.serialize_job(node, tmp_path / "out")))
    assert "test.csv was changed after the study began" in answer["reason"] and not answer["again"]
    (tmp_path / "test.csv").write_text(rows, encoding="utf-8")
    assert json.loads(jobs.run_job(jobs.serialize_job(node, tmp_path / "out")))["ended"] == "finished"


def test_an_error_says_whether_a_retry_may_help(tmp_path):
    broken = Node("baseline", {"baseline": "majority"}, (), {}, "broken")
    answer = json.loads(jobs.run_job(jobs.serialize_job(broken, tmp_path)))
    assert answer["ended"] == "failed" and not answer["again"] and "task is missing" in answer["reason"]


def waiting_for_a_lock(workers: LocalWorkers) -> int:
    """Return the process id of the only busy worker as soon as the kernel lists it as waiting for a lock."""
    pid = next(iter(workers._busy.values())).process.pid
    deadline = time.monotonic() + 120
    while not any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
        assert time.monotonic() < deadline, "the worker does not wait for the lock"
        time.sleep(0.01)
    return pid


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs the list of locks of Linux")
def test_a_killed_worker_is_replaced_and_its_cell_retried(tmp_path):
    """With real workers: the first waits for the lock of its cell until it is killed, the second until it is free."""
    (tmp_path / "rows.csv").write_text("text,label\ngood,1\nbad,0\n", encoding="utf-8")
    data = dict.fromkeys(("train", "validation", "test"), f"{tmp_path}/rows.csv") | {"allow_overlap": True}
    recipe = {"baseline": "majority", "task": {"kind": "classify", "text": ["text"], "label": "label"}, "data": data}
    held = Node("baseline", recipe, (), {}, "held")
    work = tmp_path / "work" / "held"
    work.mkdir(parents=True)
    from headstart.core.lock import FolderLock

    lock = FolderLock(work)
    lock.acquire()
    workers = LocalWorkers(1, 1)
    try:
        workers.submit("held", jobs.serialize_job(held, tmp_path))
        os.kill(waiting_for_a_lock(workers), signal.SIGKILL)
        ((key, answer),) = workers.wait()
        assert key == "held" and "signal 9 (SIGKILL)" in answer and json.loads(answer)["again"]
        workers.submit("held", jobs.serialize_job(held, tmp_path))
        waiting_for_a_lock(workers)
        assert not is_finished(tmp_path, "held"), "another process holds the lock"
        lock.release()
        ((_, answer),) = workers.wait()
        assert json.loads(answer)["ended"] == "finished" and is_finished(tmp_path, "held")
        assert not work.exists()
    finally:
        workers.close()


def test_an_adaptation_that_does_not_apply_is_left_out_with_its_reason(way, recipe_of, tmp_path):
    recipe = recipe_of["finetune"](way, output="cell", adaptation="zero_shot", compare_with=[])
    node = Node("finetune", config.to_dict(config.fill(FinetuneRecipe, recipe)), (), {}, "finetune-1")
    answer = json.loads(jobs.run_job(jobs.serialize_job(node, tmp_path)))
    result = json.loads((cell_dir(tmp_path, node.id) / "result.json").read_text())
    assert answer["ended"] == "finished" and list(result) == ["left_out"] and result["left_out"]
