"""Shared by the benchmarks of serving: servers in processes of their own, and a client that sends at a constant rate.

The client is open-loop: requests are sent at their times whether or not earlier ones were answered, and latency counts
from the time at which a request was due. A client that waits for replies would send less when a server is slow and
so hide it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

Body = tuple[str, bytes]
"""The path and the JSON of a request."""


@dataclass
class Server:
    """A server process; `lines` is what it has written to stderr."""

    process: subprocess.Popen[str]
    port: int
    seconds: float
    """The time from the start to the line that says where it listens."""
    lines: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        """The ids of the worker processes."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def memory(self) -> float:
        """The resident memory of the process and its workers in MB."""
        return resident_mb(self.process.pid) + sum(map(resident_mb, self.workers))

    def largest_worker(self) -> float:
        """The resident memory of the largest worker in MB; one that was restarted a moment ago is smaller."""
        return max(map(resident_mb, self.workers), default=0.0)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    try:
        return float(psutil.Process(pid).memory_info().rss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


@contextmanager
def running(command: Sequence[str], ready: str, **environment: str) -> Iterator[Server]:
    """Start a server, wait for a line on stderr that matches `ready` and captures the port; stop it at the end."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    server = Server(process, 0, 0.0)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            server.lines.append(line)
            if match := re.search(ready, line):
                server.port, server.seconds = int(match[1]), time.perf_counter() - start
                break
        if not server.port:
            raise SystemExit("the server did not start:\n" + "".join(server.lines))
        threading.Thread(target=server.lines.extend, args=(process.stderr,), daemon=True).start()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def headstart_server(*arguments: str, **environment: str) -> Any:
    """Start `headstart serve` on a free port."""
    command = [sys.executable, "-m", "headstart", "serve", "--port=0", *arguments]
    return running(command, r"listening on http://\S+:(\d+)", **environment)


@dataclass
class Sent:
    """One request: when it was due, how long the reply took from then on, its status, and the parsed reply."""

    due: float
    seconds: float
    status: int
    """0 if the connection failed or was closed."""
    body: Body
    reply: Any = None


class Connections:
    """Keep-alive connections to a server; one that fails is closed and not used again."""

    def __init__(self, port: int) -> None:
        """Start without connections."""
        self.port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, body: Body, keep: bool) -> tuple[int, Any]:
        """Send a request and return the status and the parsed reply (None unless `keep`)."""
        path, content = body
        while self._idle and self._idle[-1][0].at_eof():
            self._idle.pop()[1].close()
        pair = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = pair
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            writer.write(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            status, length, closes = await _head(reader)
            reply = await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        if closes:
            writer.close()
        else:
            self._idle.append(pair)
        return status, json.loads(reply) if keep else None

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, int, bool]:
    """Read the head of a reply; returns its status, the length of its body, and whether the connection ends."""
    line = await reader.readline()
    if not line:
        raise ConnectionError("closed")
    status, length, closes = int(line.split()[1]), 0, False
    while (header := (await reader.readline()).strip().lower()) != b"":
        name, _, value = header.partition(b":")
        length = int(value) if name == b"content-length" else length
        closes |= name == b"connection" and value.strip() == b"close"
    return status, length, closes


async def send_at_rate(
    port: int,
    rate: float,
    seconds: float,
    body: Callable[[int], Body],
    keep: bool = False,
    clients: int = 10_000,
    ports: Callable[[int], int] | None = None,
) -> list[Sent]:
    """Send requests at a constant rate; each is a task of its own.

    Args:
        port: the port of the server.
        rate: requests per second.
        seconds: for how long.
        body: the request of each number.
        keep: parse and return the replies.
        clients: requests that may be under way at a time; the wait for a free client counts as latency.
        ports: the port for each number, if there are several servers.
    """
    pools: dict[int, Connections] = {}
    found: list[Sent] = []
    pending: set[asyncio.Task[None]] = set()
    free = asyncio.Semaphore(clients)
    start = time.perf_counter()

    async def one(number: int, due: float) -> None:
        content, target = body(number), ports(number) if ports else port
        try:
            async with free:
                status, reply = await pools.setdefault(target, Connections(target)).post(content, keep)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            status, reply = 0, None
        found.append(Sent(due, time.perf_counter() - start - due, status, content, reply))

    for number in range(int(rate * seconds)):
        due = number / rate
        await asyncio.sleep(max(0.0, due - (time.perf_counter() - start)))
        task = asyncio.create_task(one(number, due))
        pending.add(task)
        task.add_done_callback(pending.discard)
    if pending:
        await asyncio.wait(pending)
    for connections in pools.values():
        connections.close()
    return found


async def in_closed_loop(
    port: int, clients: int, seconds: float, body: Callable[[int], Body], ports: Callable[[int], int] | None = None
) -> float:
    """Return the requests per second that `clients` get answered, each with one request at a time."""
    pools: dict[int, Connections] = {}
    answered = 0
    end = time.perf_counter() + seconds

    async def client(first: int) -> None:
        nonlocal answered
        number = first
        while time.perf_counter() < end:
            target = ports(number) if ports else port
            status, _ = await pools.setdefault(target, Connections(target)).post(body(number), False)
            number += clients
            answered += status == 200

    await asyncio.gather(*(client(i) for i in range(clients)))
    for connections in pools.values():
        connections.close()
    return answered / seconds


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile by rank; NaN of nothing."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("nan")


class Segments:
    """Results of the parts of a long run, one JSON line each, so that an interrupted run continues."""

    def __init__(self, path: Path) -> None:
        """Read the segments that were finished before."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, **segment: Any) -> None:
        """Append a segment."""
        self.done.append(segment)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(segment) + "\n")


def options_of(description: str | None, minutes: float) -> argparse.ArgumentParser:
    """Return a parser with the options of all long runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=minutes, help="length of the run, over all its segments")
    parser.add_argument("--work", type=Path, default=Path("runs/serving"), help="folder for tasks and segments")
    parser.add_argument("--results", type=Path, default=Path("docs/results/serving"), help="folder for the result")
    parser.add_argument("--page", type=Path, help="render this page from the results at the end")
    return parser


def write_result(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Add the date and the machine to a result and write it as JSON."""
    machine = f"{os.cpu_count()} cores, {os.uname().machine}"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"name": name, "date": time.strftime("%Y-%m-%d"), "machine": machine, **result}
    staging = folder / f".{name}.json"
    staging.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    staging.replace(folder / f"{name}.json")
    print(json.dumps(result), flush=True)
