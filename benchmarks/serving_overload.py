"""Overload: requests at five times the capacity of `headstart serve`, at a constant rate.

The capacity is measured first, with 32 clients that each wait for their replies. Then requests of eight texts for
random tasks are sent at five times that rate. The server must not fail, its memory must stay flat, the requests that
it accepts must be answered within the deadline, and the others must be refused at once. The client runs on the same
machine. A run that is interrupted continues with the next segment and a new server.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from serving_client import (
    Body,
    Segments,
    Sent,
    headstart_server,
    in_closed_loop,
    options_of,
    quantile,
    send_at_rate,
    write_result,
)
from serving_page import render
from serving_tasks import SST2, make_tasks

DEADLINE, FACTOR, ROWS, SEGMENT = 10.0, 5.0, 8, 30.0


def bodies(names: list[str], seed: int) -> list[Body]:
    """Return requests of eight texts for random tasks."""
    rng = random.Random(seed)
    texts = pq.read_table(SST2 / "train.parquet").column("text").to_pylist()[:2000]
    return [
        (f"/v1/tasks/{rng.choice(names)}", json.dumps({"inputs": [rng.choice(texts) for _ in range(ROWS)]}).encode())
        for _ in range(500)
    ]


def summary(sent: list[Sent]) -> dict[str, Any]:
    """Return the counts by status, and the latencies in ms of accepted and refused requests."""
    statuses: dict[str, int] = {}
    for request in sent:
        statuses[str(request.status)] = statuses.get(str(request.status), 0) + 1
    of = {status: [round(1000 * r.seconds, 1) for r in sent if r.status == status] for status in (200, 429)}
    return {"statuses": statuses, "accepted_ms": of[200], "refused_ms": of[429]}


def run(folder: Path, segments: Segments, minutes: float, arguments: list[str]) -> None:
    """Send until the segments have the wanted length together."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    requests = bodies(names, seed=0)
    with headstart_server(str(folder), f"--deadline-seconds={DEADLINE}", *arguments) as server:
        body = lambda number: requests[number % len(requests)]  # noqa: E731
        asyncio.run(in_closed_loop(server.port, 32, 3, body))
        capacity = asyncio.run(in_closed_loop(server.port, 32, 10, body))
        alone = [request.seconds for request in asyncio.run(send_at_rate(server.port, 2, 5, body))]
        while (left := 60 * minutes - sum(segment["seconds"] for segment in segments.done)) > 1:
            seconds = min(SEGMENT, left)
            sent = asyncio.run(send_at_rate(server.port, FACTOR * capacity, seconds, body))
            segments.add(
                seconds=seconds, server=server.process.pid, capacity=capacity, memory_mb=server.memory(),
                alone_ms=1000 * quantile(alone, 0.5), is_alive=server.process.poll() is None,
                restarts=sum("is restarted" in line for line in server.lines), **summary(sent),
            )  # fmt: skip


def result(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all segments together."""
    accepted = [ms for segment in segments for ms in segment["accepted_ms"]]
    refused = [ms for segment in segments for ms in segment["refused_ms"]]
    statuses: dict[str, int] = {}
    for segment in segments:
        for status, count in segment["statuses"].items():
            statuses[status] = statuses.get(status, 0) + count
    growth = []
    for process in {segment["server"] for segment in segments}:
        memory = [segment["memory_mb"] for segment in segments if segment["server"] == process]
        growth += [mb / memory[0] - 1 for mb in memory[1:]]
    return {
        "minutes": round(sum(segment["seconds"] for segment in segments) / 60, 2),
        "capacity_requests_per_second": round(segments[-1]["capacity"], 1), "factor": FACTOR, "rows_per_request": ROWS,
        "deadline_seconds": DEADLINE, "statuses": statuses, "is_alive": all(s["is_alive"] for s in segments),
        "worker_restarts": sum(segment["restarts"] for segment in segments),
        "accepted_ms_p50": quantile(accepted, 0.5), "accepted_ms_p99": quantile(accepted, 0.99),
        "refused_ms_p50": quantile(refused, 0.5), "refused_ms_p99": quantile(refused, 0.99),
        "answered_rows_per_second": round(ROWS * len(accepted) / sum(s["seconds"] for s in segments), 1),
        "memory_mb": round(segments[-1]["memory_mb"], 1),
        "memory_change_percent": [round(100 * min(growth, default=0), 2), round(100 * max(growth, default=0), 2)],
    }  # fmt: skip


def main() -> None:
    """Run what is missing, write the result, and render the page."""
    parser = options_of(__doc__, minutes=10)
    parser.add_argument("--serve", nargs="*", default=[], help="further arguments of `headstart serve`, without dashes")
    options = parser.parse_args()
    folder = make_tasks(options.work, "overload-tasks", lora=8, adapter=2)
    segments = Segments(options.work / "overload.jsonl")
    run(folder, segments, options.minutes, [f"--{argument}" for argument in options.serve])
    write_result(options.results, "overload", result(segments.done))
    if options.page:
        render(options.results, options.page)


if __name__ == "__main__":
    main()
