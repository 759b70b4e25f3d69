"""Throughput at equal p99: `headstart serve` against servers as people write them (`serving_rivals.py`).

Classification: four tasks with requests of one text each, in turn. Headstart serves them as LoRA on one body, with a
worker per core; the rivals have whole models without adapters, which is less work per text: a FastAPI server with one
pipeline per task in one process, and one such process per task. Vectors: the same sentence model behind both servers.
The client sends at a constant rate over at most 32 connections; the latency of a request counts from the time at which
it was due. Reported is the highest rate, found by bisection, at which p99 is within the limit and nothing fails. wrk,
if it is installed, sends the same requests from as many connections without a pause, as a check by another client. All
compute in fp32 on the same cores, client included. Measured rates are kept, so that an interrupted run continues.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from serving_client import (
    Body,
    Segments,
    headstart_server,
    in_closed_loop,
    options_of,
    quantile,
    running,
    send_at_rate,
    write_result,
)
from serving_page import render
from serving_tasks import SST2, make_tasks

from headstart.core.processes import cores

CLIENTS, TASKS, P99_MS, STEPS = 32, 4, 500.0, 5
RATIOS = {
    "against one process with pipelines": ("headstart, 4 tasks", "pipelines in one process", 3.0),
    "against a process per task": ("headstart, 4 tasks", "a process per task", 3.0),
    "vectors, against sentence-transformers": ("headstart, vectors", "sentence-transformers, vectors", 1.2),
}


@dataclass(frozen=True)
class Target:
    """A running server, or several: the request and the port of each number."""

    body: Callable[[int], Body]
    port: Callable[[int], int]


def classify(texts: list[str], kind: str) -> Callable[[int], Body]:
    """Return requests of one text for each task in turn."""
    return lambda number: (
        f"/v1/tasks/{kind}-{number % TASKS}",
        json.dumps({"inputs": [texts[number % len(texts)]]}).encode(),
    )


@contextmanager
def started(name: str, work: Path, texts: list[str]) -> Iterator[Target]:
    """Start the server of a name."""
    tasks = make_tasks(work, "comparison-tasks", lora=TASKS, full=TASKS, embed=1)
    rival = [sys.executable, str(Path(__file__).with_name("serving_rivals.py"))]
    ready = r"rival on port (\d+)"
    workers = f"--workers={cores()}"
    whole = [str(tasks / f"full-{i}") for i in range(TASKS)]
    with ExitStack() as stack:
        start = stack.enter_context
        match name:
            case "headstart, 4 tasks":
                port = start(headstart_server(*(str(tasks / f"lora-{i}") for i in range(TASKS)), workers)).port
                yield Target(classify(texts, "lora"), lambda _: port)
            case "pipelines in one process":
                port = start(running([*rival, "pipeline", *whole], ready)).port
                yield Target(classify(texts, "full"), lambda _: port)
            case "a process per task":
                threads = str(max(1, cores() // TASKS))
                ports = [
                    start(running([*rival, "pipeline", one], ready, OMP_NUM_THREADS=threads)).port for one in whole
                ]
                yield Target(classify(texts, "full"), lambda number: ports[number % TASKS])
            case "headstart, vectors":
                port = start(headstart_server(str(tasks / "embed-0"), workers)).port
                yield Target(
                    lambda n: (
                        "/v1/embeddings",
                        json.dumps({"model": "embed-0", "input": [texts[n % len(texts)]]}).encode(),
                    ),
                    lambda _: port,
                )
            case _:
                port = start(running([*rival, "vectors", str(tasks / "embed-0")], ready)).port
                yield Target(
                    lambda n: ("/v1/embeddings", json.dumps({"inputs": [texts[n % len(texts)]]}).encode()),
                    lambda _: port,
                )


def by_wrk(target: Target, seconds: float) -> float | None:
    """Return the requests per second of wrk with the same number of connections; None without wrk, or with failures."""
    if shutil.which("wrk") is None:
        return None
    ports = list(dict.fromkeys(target.port(number) for number in range(TASKS)))
    with tempfile.TemporaryDirectory() as folder:
        running_clients = []
        for port in ports:
            requests = [target.body(number) for number in range(400) if target.port(number) == port]
            script = Path(folder) / f"{port}.lua"
            script.write_text(_wrk_script(requests), encoding="utf-8")
            command = ["wrk", "-t1", f"-c{CLIENTS // len(ports)}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
            running_clients.append(
                subprocess.Popen([*command, f"http://127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
            )
        reports = [client.communicate()[0] for client in running_clients]
    if any("Non-2xx" in report or "Socket errors" in report for report in reports):
        return None
    return sum(float(report.split("Requests/sec:")[1].split()[0]) for report in reports)


def _wrk_script(requests: list[Body]) -> str:
    """Return a script that sends the requests in turn. A JSON string is also one of Lua if its escapes are ASCII."""
    lines = [f"wrk.format('POST', {json.dumps(path)}, headers, {json.dumps(body.decode())})" for path, body in requests]
    return "\n".join([
        "local number = 0", "local headers = {['Content-Type'] = 'application/json', ['Host'] = '127.0.0.1'}",
        "local requests = nil", "request = function()",
        f"  if requests == nil then requests = {{{', '.join(lines)}}} end",
        "  number = number % #requests + 1", "  return requests[number]", "end",
    ])  # fmt: skip


def highest_rate(name: str, target: Target, segments: Segments, seconds: float) -> None:
    """Measure rates by bisection, from a tenth of the closed-loop rate of 32 clients to that rate."""
    known = [segment for segment in segments.done if segment["server"] == name]
    if not known:
        asyncio.run(in_closed_loop(0, CLIENTS, min(3.0, seconds), target.body, target.port))
        closed = asyncio.run(in_closed_loop(0, CLIENTS, seconds, target.body, target.port))
        segments.add(server=name, rate=closed, closed=True, passed=False, wrk=by_wrk(target, seconds))
    closed = next(segment["rate"] for segment in segments.done if segment["server"] == name)
    low, high = 0.1 * closed, 1.2 * closed
    for _ in range(STEPS):
        rate = (low + high) / 2
        done = next((s for s in segments.done if s["server"] == name and abs(s["rate"] - rate) < 1e-9), None)
        if done is None:
            sent = asyncio.run(send_at_rate(0, rate, seconds, target.body, clients=CLIENTS, ports=target.port))
            p99 = 1000 * quantile([request.seconds for request in sent], 0.99)
            failed = sum(request.status != 200 for request in sent)
            done = {"server": name, "rate": rate, "closed": False, "p99_ms": round(p99, 1), "failed": failed,
                    "passed": p99 <= P99_MS and not failed}  # fmt: skip
            segments.add(**done)
        low, high = (rate, high) if done["passed"] else (low, rate)


def result(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the highest rate of each server and the ratios."""
    rates = {
        name: max((s["rate"] for s in segments if s["server"] == name and s["passed"]), default=float("nan"))
        for name in dict.fromkeys(segment["server"] for segment in segments)
    }
    return {
        "p99_limit_ms": P99_MS, "clients": CLIENTS, "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "closed_loop": {s["server"]: round(s["rate"], 1) for s in segments if s["closed"]},
        "wrk": {s["server"]: round(s["wrk"], 1) for s in segments if s.get("wrk")},
        "ratios": {name: round(rates[ours] / rates[theirs], 3) for name, (ours, theirs, _) in RATIOS.items()},
        "goals": {name: goal for name, (_, _, goal) in RATIOS.items()},
    }  # fmt: skip


def main() -> None:
    """Measure what is missing, write the result, and render the page. The minutes are divided among all rates."""
    options = options_of(__doc__, minutes=30).parse_args()
    texts = pq.read_table(SST2 / "train.parquet").column("text").to_pylist()[:5000]
    segments = Segments(options.work / "comparison.jsonl")
    names = list(dict.fromkeys(name for ours, theirs, _ in RATIOS.values() for name in (ours, theirs)))
    seconds = 60 * options.minutes / (len(names) * (STEPS + 1))
    for name in names:
        if sum(segment["server"] == name for segment in segments.done) < STEPS + 1:
            with started(name, options.work, texts) as target:
                highest_rate(name, target, segments, seconds)
    write_result(options.results, "comparison", {"seconds_per_rate": seconds, **result(segments.done)})
    if options.page:
        render(options.results, options.page)


if __name__ == "__main__":
    main()
