"""Soak: tasks are replaced, workers are killed, clients leave and others read slowly, while every answer is checked.

`headstart serve --workers 2` answers requests at a constant rate. Each answer is compared, by the content hash that it
names, with that of the model alone, to 1e-4. Meanwhile tasks are replaced by a rename, workers die by `kill -9`, some
clients close their connection before the reply, and some read one byte at a time. A request may be lost only if a
worker was killed while it was under way. A run that is interrupted continues with the next segment and a new server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from serving_client import Body, Segments, Sent, Server, headstart_server, options_of, send_at_rate, write_result
from serving_page import render
from serving_tasks import SST2, make_tasks, variant

from headstart.core import artifact
from headstart.stages.finetune.finished import Finetuned, unlabeled
from headstart.stages.runs.manifest import FinetuneManifest

KINDS = {"lora": 4, "adapter": 2}
TEXTS, SEGMENT, RATE, TOLERANCE = 20, 60.0, 15.0, 1e-4
Expected = dict[tuple[str, int], dict[str, float]]
"""The scores of a version, by its hash and the number of a text."""


def answers_alone(folder: Path, texts: list[str]) -> list[dict[str, float]]:
    """Return the scores of the model alone, one text per batch of the run."""
    model = Finetuned(folder, FinetuneManifest.read(folder))
    scores = model.predict_with_scores(unlabeled(model.task, texts))[1]
    return [{str(label): float(score) for label, score in row.items()} for row in scores]


def make_versions(work: Path, texts: list[str]) -> tuple[Path, dict[str, list[Path]], Expected]:
    """Return the folder to serve, two versions of each task, and the scores of all versions."""
    sources = make_tasks(work, "soak-tasks", **KINDS)
    served, versions, expected = work / "soak-served", {}, {}
    shutil.rmtree(served, ignore_errors=True)
    served.mkdir()
    for source in sorted(path for path in sources.iterdir() if not path.name.startswith((".", "other-"))):
        other = sources / f"other-{source.name}"
        if not artifact.is_complete(other):
            variant(source, other, seed=1000 + len(versions))
        versions[source.name] = [source, other]
        shutil.copytree(source, served / source.name, copy_function=os.link)
        for version in versions[source.name]:
            for i, scores in enumerate(answers_alone(version, texts)):
                expected["sha256:" + artifact.identity(version), i] = scores
    return served, versions, expected


def swap(folder: Path, version: Path) -> None:
    """Replace a served folder by another version, as a finished run does: by a rename."""
    staging, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    shutil.copytree(version, staging, copy_function=os.link)
    folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old)


class Disturbances:
    """What happens to the server during a segment."""

    def __init__(self, server: Server, served: Path, versions: dict[str, list[Path]], seed: int) -> None:
        """Start with nothing done."""
        self.server, self.served, self.versions, self.rng = server, served, versions, random.Random(seed)
        self.start = time.perf_counter()
        self.kills: list[float] = []
        self.swaps = self.left = self.slow = 0

    async def replace(self) -> None:
        """Replace the next task by its other version."""
        name = sorted(self.versions)[self.swaps % len(self.versions)]
        current = artifact.identity(self.served / name)
        version = next(path for path in self.versions[name] if artifact.identity(path) != current)
        await asyncio.to_thread(swap, self.served / name, version)
        self.swaps += 1

    async def kill(self) -> None:
        """Kill one worker, when all are there."""
        while len(self.server.workers) < 2:
            await asyncio.sleep(0.1)
        os.kill(self.rng.choice(self.server.workers), signal.SIGKILL)
        self.kills.append(time.perf_counter() - self.start)

    async def leave(self, body: Body) -> None:
        """Send a request, or half of one, and close the connection."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        raw = _raw(body)
        writer.write(raw if self.left % 2 else raw[: len(raw) // 2])
        await writer.drain()
        await asyncio.sleep(self.rng.random() * 0.05)
        writer.transport.abort()
        self.left += 1

    async def read_slowly(self, body: Body) -> None:
        """Read a reply one byte at a time, until it ends or 10 s have passed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(_raw(body))
        end = time.perf_counter() + 10
        while time.perf_counter() < end and await reader.read(1):
            await asyncio.sleep(0.02)
        writer.transport.abort()
        self.slow += 1


def _raw(body: Body) -> bytes:
    head = f"POST {body[0]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    return head.encode() + f"{len(body[1])}\r\n\r\n".encode() + body[1]


async def every(seconds: float, elapsed: float, end: float, action: Callable[[], Awaitable[None]]) -> None:
    """Repeat an action at the multiples of `seconds` until `end`; the segments before took `elapsed` seconds.

    A connection that the death of a worker closed is no failure of an action.
    """
    start, number = time.perf_counter() - elapsed, int(elapsed // seconds) + 1
    while number * seconds < end:
        await asyncio.sleep(max(0.0, number * seconds - (time.perf_counter() - start)))
        number += 1
        try:
            await action()
        except OSError:
            continue


async def segment(
    seconds: float, elapsed: float, disturbances: Disturbances, names: list[str], texts: list[str],
    swap_seconds: float, kill_seconds: float,
) -> list[Sent]:  # fmt: skip
    """Send requests at a constant rate while the disturbances go on."""

    def body(number: int) -> Body:
        name, i = names[number % len(names)], number // len(names) % len(texts)
        return f"/v1/tasks/{name}", json.dumps({"inputs": [texts[i]]}).encode()

    end = elapsed + seconds
    actions = [
        every(swap_seconds, elapsed, end, disturbances.replace), every(kill_seconds, elapsed, end, disturbances.kill),
        every(1.0, elapsed, end, lambda: disturbances.leave(body(disturbances.left))),
        every(5.0, elapsed, end, lambda: disturbances.read_slowly(body(disturbances.slow))),
    ]  # fmt: skip
    tasks = [asyncio.create_task(action) for action in actions]
    try:
        return await send_at_rate(disturbances.server.port, RATE, seconds, body, keep=True)
    finally:
        for task in tasks:
            task.cancel()


def check(sent: list[Sent], kills: list[float], texts: list[str], expected: Expected) -> dict[str, Any]:
    """Compare the answers; returns the counts. A lost request must have been under way when a worker was killed."""
    numbers = {text: i for i, text in enumerate(texts)}
    counts: dict[str, Any] = {"answered": 0, "wrong": [], "lost_at_kills": 0, "lost_otherwise": 0, "statuses": {}}
    for request in sent:
        key = str(request.status)
        counts["statuses"][key] = counts["statuses"].get(key, 0) + 1
        if request.status == 200:
            counts["answered"] += 1
            i = numbers[json.loads(request.body[1])["inputs"][0]]
            scores = {str(entry["label"]): entry["score"] for entry in request.reply["results"][0]["scores"]}
            alone = expected.get((request.reply["model_hash"], i), {})
            task = request.body[0].rpartition("/")[2]
            same = scores.keys() == alone.keys() and all(abs(scores[k] - alone[k]) <= TOLERANCE for k in alone)
            if not same or request.reply["task"] != task:
                counts["wrong"].append({"task": task, "reply": request.reply, "alone": alone})
        elif request.status == 0:
            # An idle connection of the killed worker may be used before the client sees that it is closed.
            was_killed = any(request.due - 0.5 <= kill <= request.due + request.seconds + 0.5 for kill in kills)
            counts["lost_at_kills" if was_killed else "lost_otherwise"] += 1
    return counts


def run(work: Path, segments: Segments, minutes: float, swaps: int, kills: int) -> None:
    """Run segments until they have the wanted length together."""
    texts = pq.read_table(SST2 / "validation.parquet").column("text").to_pylist()[:TEXTS]
    served, versions, expected = make_versions(work, texts)
    names = sorted(versions)
    with headstart_server(str(served), "--workers=2") as server:
        while (elapsed := sum(done["seconds"] for done in segments.done)) < 60 * minutes - 1:
            seconds = min(SEGMENT, 60 * minutes - elapsed)
            disturbances = Disturbances(server, served, versions, seed=len(segments.done))
            before = sum("is restarted" in line for line in server.lines)
            intervals = (60 * minutes / (swaps + 1), 60 * minutes / (kills + 1))
            sent = asyncio.run(segment(seconds, elapsed, disturbances, names, texts, *intervals))
            segments.add(
                seconds=seconds, server=server.process.pid, memory_mb=server.largest_worker(),
                kills=len(disturbances.kills), swaps=disturbances.swaps, left=disturbances.left, slow=disturbances.slow,
                restarts=sum("is restarted" in line for line in server.lines) - before,
                **check(sent, disturbances.kills, texts, expected),
            )  # fmt: skip


def result(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all segments together."""
    total = {
        name: sum(segment[name] for segment in segments)
        for name in ("answered", "kills", "restarts", "swaps", "left", "slow", "lost_at_kills", "lost_otherwise")
    }
    statuses: dict[str, int] = {}
    for done in segments:
        for status, count in done["statuses"].items():
            statuses[status] = statuses.get(status, 0) + count
    growth = [done["memory_mb"] / segments[0]["memory_mb"] - 1 for done in segments]
    return {
        "minutes": round(sum(segment["seconds"] for segment in segments) / 60, 2), "rate": RATE, **total,
        "wrong": sum(len(segment["wrong"]) for segment in segments), "statuses": statuses,
        "memory_change_percent": [round(100 * min(growth), 2), round(100 * max(growth), 2)],
    }  # fmt: skip


def main() -> None:
    """Run what is missing, write the result, and render the page."""
    parser = options_of(__doc__, minutes=30)
    parser.add_argument("--swaps", type=int, default=200, help="tasks to be replaced over the whole run")
    parser.add_argument("--kills", type=int, default=20, help="workers to be killed over the whole run")
    options = parser.parse_args()
    segments = Segments(options.work / "soak.jsonl")
    run(options.work, segments, options.minutes, options.swaps, options.kills)
    write_result(options.results, "soak", result(segments.done))
    if options.page:
        render(options.results, options.page)


if __name__ == "__main__":
    main()
