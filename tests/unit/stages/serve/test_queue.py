"""Batches by a token budget, a queue with a limit, deadlines and clients that left."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.stages.serve.conftest import EXTRA

pytest.importorskip("prometheus_client", reason=EXTRA)

from headstart.stages.serve.bodies import BatchRow
from headstart.stages.serve.queue import Job, RowQueue
from headstart.stages.serve.refusals import Refusal

ONE, OTHER = SimpleNamespace(body=object()), SimpleNamespace(body=object())


def job(*lengths: int, slot: Any = ONE, seconds: float = 60) -> tuple[Job, list[Any]]:
    results: list[Any] = []
    rows = [BatchRow(slot, {}, length) for length in lengths]
    return Job(rows, time.monotonic() + seconds, results.append), results


def lengths(batch: Any) -> list[int]:
    return [job.rows[i].length for job, i in batch]


def test_a_batch_fits_the_budget_and_starts_with_the_oldest():
    queue = RowQueue(100, budget=40, window=0)
    queue.add(job(10, 30, 9, 8, 11, 10, 50)[0])
    assert lengths(queue.take()) == [10, 10, 9, 8], "with 11 instead of 8, 44 tokens"
    assert [lengths(queue.take()) for _ in range(3)] == [[30], [11], [50]]


def test_little_of_a_batch_is_padding():
    queue = RowQueue(1000, budget=1024, window=0)
    rows = [3 + 7 * i % 40 for i in range(120)]
    queue.add(job(*rows)[0])
    batches = []
    while len(queue):
        batches.append(lengths(queue.take()))
    padded = sum(max(batch) * len(batch) for batch in batches)
    assert padded <= 1.25 * sum(rows) and len(batches) < 15, batches
    assert all(max(b) * len(b) <= max(128, 1.15 * sum(b)) for b in batches)


def test_padded_tokens_never_exceed_the_budget():
    queue = RowQueue(1000, budget=128, window=0)
    queue.add(job(*[1 + 7 * i % 31 for i in range(200)])[0])
    seen = 0
    while len(queue):
        batch = lengths(queue.take())
        seen += len(batch)
        assert max(batch) * len(batch) <= 128
    assert seen == 200


def test_a_row_beyond_the_budget_is_computed_alone():
    queue = RowQueue(100, budget=40, window=0)
    queue.add(job(90, 90)[0])
    assert [lengths(queue.take()), lengths(queue.take())] == [[90], [90]]


def test_a_batch_has_one_body():
    queue = RowQueue(100, budget=100, window=0)
    for slot in (ONE, OTHER, ONE):
        queue.add(job(5, slot=slot)[0])
    assert len(queue.take()) == 2 and len(queue.take()) == 1


def test_the_queue_refuses_what_does_not_fit_and_says_when_to_retry():
    queue = RowQueue(10, budget=100, window=0)
    queue.rows_per_second = 2
    with queue.reserved(8):
        with pytest.raises(Refusal) as refused, queue.reserved(3):
            pass
        assert refused.value.status == 429 and refused.value.headers() == {"Retry-After": "4"}
        with queue.reserved(2):
            pass
    with pytest.raises(Refusal) as refused, queue.reserved(11):
        pass
    assert refused.value.status == 413


def test_deadlines_and_clients_that_left():
    queue = RowQueue(10, budget=100, window=0)
    late, answered = job(5, seconds=0)
    gone, nothing = job(5, 5)
    gone.abandoned.set()
    kept, _ = job(7)
    for entry in (late, gone, kept):
        queue.add(entry)
    assert lengths(queue.take()) == [7] and queue.dropped == 3
    assert [refusal.status for refusal in answered] == [504] and not nothing


def test_a_closed_queue_gives_what_it_has_and_takes_nothing():
    queue = RowQueue(10, budget=100, window=10)
    queue.add(job(5)[0])
    queue.close()
    start = time.monotonic()
    assert lengths(queue.take()) == [5] and queue.take() is None and time.monotonic() - start < 5
    with pytest.raises(Refusal) as refused:
        queue.add(job(5)[0])
    assert refused.value.status == 503


def test_more_than_can_be_computed_in_time_is_refused():
    queue = RowQueue(1000, budget=100, window=0, patience=5)
    with queue.reserved(600):
        pass
    queue.rows_per_second = 10
    with queue.reserved(60), pytest.raises(Refusal) as refused, queue.reserved(1):
        pass
    assert refused.value.status == 429, "60 rows take 6 s; a request on an idle server is always accepted"
    with queue.reserved(40), queue.reserved(10):
        pass


def test_an_unusual_length_does_not_wait_for_the_whole_queue():
    queue = RowQueue(1000, budget=100, window=0)
    queue.add(job(*[10] * 10, 60, 61, *[10] * 500)[0])
    batches = [lengths(queue.take()) for _ in range(8)]
    assert any(60 in batch for batch in batches) and any(61 in batch for batch in batches)
