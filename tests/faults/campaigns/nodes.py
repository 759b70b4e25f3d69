"""Nodes of a run are killed, brought back, and cut off: the run continues with those that are left.

A node is a network namespace with one rank (`benchmarks/namespaces.py`). The launchers meet as on real machines, by the
name of one of them. All nodes share a folder.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from .nursery import Child
from .report import Found
from .subjects import ROOT, Ground, curve

sys.path.insert(0, str(ROOT / "benchmarks"))
import namespaces

COUNT, LEAST = 4, 3
_PORT = 29400
_WAIT = 600.0
"""Seconds to wait for an event; a start of four ranks on two busy cores takes minutes."""
_LONG = 3600.0
_SETTINGS = (
    "training.seq_length=32", "training.micro_batch_size=4", "training.save_interval_minutes=0.02",
    "training.eval_count=1",
)  # fmt: skip

# Runs in every process of a node. Each rank records which rows it trains on, and in which start. At a step of `gates`,
# a start with the given number of ranks waits for the next start.
_TRAP = """
import dataclasses, hashlib, json, os, pathlib, sys, time
sys.path.insert(0, {benchmarks!r})
import namespaces
from headstart.training.step import TrainStep
notes, gradients = pathlib.Path({notes!r}), TrainStep.gradients
# It is a child of the nursery, not of its launcher.
if "HEADSTART_LAUNCHED" in os.environ:
    os.environ["HEADSTART_LAUNCHED"] = "forked"
sys.executable = {proxy!r}

def recorded(self, micro_batches, step, stop, clock):
    rows = []
    for batch in micro_batches:
        for row in range(len(next(iter(batch.values())))):
            content = b"".join(name.encode() + t[row].numpy().tobytes() for name, t in sorted(batch.items()))
            rows.append(hashlib.sha256(content).hexdigest())
    start = os.environ.get("MASTER_ADDR", "") + ":" + os.environ.get("MASTER_PORT", "")
    with (notes / f"rows-{{os.getpid()}}.jsonl").open("a") as file:
        file.write(json.dumps([step, self.world.size, start, time.time(), rows]) + "\\n")
    while any(step >= at and self.world.size == size for at, size in json.loads((notes / "gates.json").read_text())):
        if stop():
            break
        time.sleep(0.02)
    return gradients(self, micro_batches, step, stop, clock)

TrainStep.gradients = recorded
namespaces.Node(**json.loads({node!r})).enter()
"""

# What the launcher of a node starts instead of Python. The nursery, which has imported everything, forks the rank; this
# process passes signals on to it, and ends as it ends.
_PROXY = """#!{python} -IS
import json, os, signal, socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect({socket!r})
file = channel.makefile("rw")
file.write(json.dumps({{"arguments": sys.argv[4:], "environment": dict(os.environ)}}) + "\\n")
file.flush()
signals = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
pid = int(file.readline())
for number in signals:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
code = int(file.readline() or -9)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Run:
    """One run on several nodes, whose ranks record their rows."""

    def __init__(self, ground: Ground, nodes: list[namespaces.Node], steps: int, *more: str) -> None:
        """Prepare the starting of ranks; nothing runs yet."""
        self.ground, self.nodes = ground, nodes
        self.folder, self.notes = ground.fresh("nodes"), ground.fresh("rows")
        self.notes.mkdir()
        self.command = ground.command("masked_lm", self.folder, *_SETTINGS, f"training.budget={steps} steps", *more)
        self.launchers: dict[int, Child] = {}
        self.ranks: list[tuple[int, Child, socket.socket]] = []
        path = str(self.notes / "socket")
        self._requests = socket.create_server(path, family=socket.AF_UNIX)
        self._requests.setblocking(False)
        self._proxy = self.notes / "python"
        self._proxy.write_text(_PROXY.format(python=sys.executable, socket=path), encoding="utf-8")
        self._proxy.chmod(0o755)
        self.gate()

    def gate(self, *gates: tuple[int, int]) -> None:
        """Let starts with a certain number of ranks wait at a step."""
        temporary = self.notes / "gates.new"
        temporary.write_text(json.dumps(gates), encoding="utf-8")
        temporary.replace(self.notes / "gates.json")

    def launch(self, index: int, nodes: str = f"{LEAST}:{COUNT}", restarts: int = 100) -> None:
        """Start the command line on a node; the first node is the one where they meet."""
        words = [*self.command, "--processes=1", f"--nodes={nodes}", f"--rendezvous={self.nodes[0].name}:{_PORT}"]
        words += [f"--restarts={restarts}"] if restarts else []
        self.launchers[index] = self.ground.nursery.start(words, code=self.trap(index))

    def trap(self, index: int) -> str:
        """Return the code that a process of a node runs first."""
        node = json.dumps({key: str(value) for key, value in asdict(self.nodes[index]).items()})
        return _TRAP.format(
            benchmarks=str(ROOT / "benchmarks"), notes=str(self.notes), proxy=str(self._proxy), node=node
        )  # fmt: skip

    def serve(self, seconds: float = 0.1) -> None:
        """Start the ranks that launchers have asked for, and report those that have ended."""
        self.ground.nursery.listen(seconds)
        try:
            channel, _ = self._requests.accept()
        except BlockingIOError:
            channel = None
        if channel is not None:
            channel.setblocking(True)
            request = json.loads(channel.makefile("r").readline())
            environment = request["environment"]
            launcher = int(environment["HEADSTART_LAUNCHED"])
            index = next((i for i, child in self.launchers.items() if child.pid == launcher), None)
            if index is None:  # Its node was killed meanwhile.
                channel.close()
                return
            rank = self.ground.nursery.start(request["arguments"], environment=environment, code=self.trap(index))
            channel.sendall(f"{rank.pid}\n".encode())
            self.ranks.append((index, rank, channel))
        for entry in list(self.ranks):
            _, rank, channel = entry
            if rank.pid in self.ground.nursery.codes:
                with suppress(OSError):
                    channel.sendall(f"{self.ground.nursery.codes[rank.pid]}\n".encode())
                channel.close()
                self.ranks.remove(entry)

    def kill(self, index: int) -> None:
        """Kill the launcher of a node and its ranks with SIGKILL, all at once."""
        launcher = self.launchers.pop(index)
        stubs = psutil.Process(launcher.pid).children(recursive=True)
        pids = [launcher.pid, *(rank.pid for at, rank, _ in self.ranks if at == index), *(stub.pid for stub in stubs)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill what still runs."""
        for index, launcher in list(self.launchers.items()):
            if launcher.is_alive:
                self.kill(index)
        self.serve()
        self._requests.close()

    def output(self) -> str:
        """Return the end of what launchers and ranks wrote."""
        children = [*self.launchers.items(), *((index, rank) for index, rank, _ in self.ranks)]
        return "\n".join(f"node {index}: {child.output()[-2500:]}" for index, child in children)

    def entries(self) -> list[list[Any]]:
        """Return what the ranks recorded: step, number of ranks, start, time, and hashes of rows."""
        lines = [line for path in self.notes.glob("rows-*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("]")]

    def reached(self, step: int, size: int, after: float = 0.0) -> bool:
        """Return True if a start with some number of ranks has entered a step since a moment."""
        return any(entry[0] >= step and entry[1] == size and entry[3] >= after for entry in self.entries())

    def ranks_at(self, step: int) -> int:
        """Return how many ranks of the last start have entered a step."""
        entries = self.entries()
        last = max(entries, key=lambda entry: entry[3], default=None)
        return sum(entry[0] == step and entry[2] == last[2] for entry in entries) if last else 0

    def messages(self) -> list[str]:
        """Return the errors that ranks have printed."""
        logs = sorted(self.ground.nursery.logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        return [line for line in lines if line.startswith("headstart, rank") or line.startswith("headstart: Runtime")]

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = _WAIT) -> None:
        """Serve until a condition holds; raise with the output of the nodes if it does not."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.serve()
            codes = self.ground.nursery.codes
            failed = {i: codes[child.pid] for i, child in self.launchers.items() if codes.get(child.pid)}
            if time.monotonic() > deadline or failed:
                raise AssertionError(f"{what} did not happen; ended: {failed}\n{self.output()}")

    def finish(self) -> None:
        """Wait until all launchers have ended with code 0."""
        self.wait(lambda: not any(child.is_alive for child in self.launchers.values()), "the end of the run")
        codes = {index: self.ground.nursery.codes[child.pid] for index, child in self.launchers.items()}
        assert not any(codes.values()), f"{codes}\n{self.output()}"


def campaign(ground: Ground, count: int, seed: int = 0, log: Path | None = None) -> Found:
    """Kill one node of four `count` times in one run, each time after some steps, and bring it back each time."""
    found = Found("a node of four killed (network namespaces)", "three continue, then four; no sample lost or doubled")
    rng, waited = random.Random(seed), []
    steps = 4 + 4 * count
    expected, reference = _alone(ground, steps)
    with namespaces.Nodes(COUNT) as made:
        run = Run(ground, made.nodes, steps)
        try:
            for index in range(COUNT):
                run.launch(index)
            for number in range(count):
                base = 4 * number
                run.wait(lambda: run.reached(base + 1, COUNT), f"step {base + 1} with four nodes")  # noqa: B023
                # The node at which all meet is not killed: without it there is no run to come back to.
                victim, at = rng.randint(1, COUNT - 1), base + rng.randint(1, 2)
                run.gate((at, COUNT), (base + 3, LEAST))
                run.wait(lambda: run.reached(at, COUNT), f"step {at} with four nodes")  # noqa: B023
                killed = time.time()
                run.kill(victim)
                run.gate((base + 3, LEAST))
                run.wait(lambda: run.reached(base + 3, LEAST, killed), f"step {base + 3} with three nodes")  # noqa: B023
                first = min(entry[3] for entry in run.entries() if entry[1] == LEAST and entry[3] > killed)
                back = time.time()
                run.launch(victim)
                run.wait(lambda: run.reached(base + 4, COUNT, back), f"step {base + 4} with four nodes")  # noqa: B023
                again = min(entry[3] for entry in run.entries() if entry[1] == COUNT and entry[3] > back)
                waited.append((first - killed, again - back))
                found.count += 1
                if log is not None:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([number, victim, at, *waited[-1], os.getloadavg()[0]]) + "\n")
            run.gate()
            run.finish()
            found.failures += compare(run, expected, reference, steps)
        except AssertionError as error:
            found.failures.append(str(error))
        finally:
            run.end()
    if waited:
        lost, joined = (sorted(values)[len(values) // 2] for values in zip(*waited, strict=True))
        found.notes = [
            f"one run of {steps} steps; median {lost:.0f} s from the kill to the first step of three, of which torch's "
            f"rendezvous waits 45; {joined:.0f} s from the return of the fourth to the first step of four"
        ]
    return found


def partitions(ground: Ground, count: int, down: float = 30.0, timeout: float = 10.0) -> Found:
    """Cut one node of four off `count` times in one run, each time for `down` seconds between two steps."""
    found = Found(
        f"a node of four cut off for {down:.0f} s (network namespaces)", "a named timeout and a resume, never a hang"
    )
    late: list[float] = []
    steps = 4 + 4 * count
    expected, reference = _alone(ground, steps)
    with namespaces.Nodes(COUNT) as made:
        run = Run(ground, made.nodes, steps, f"training.ddp_timeout={timeout:g}")
        try:
            run.gate((3, COUNT))
            for index in range(COUNT):
                run.launch(index)
            for number in range(count):
                at = 3 + 4 * number
                # All wait before the exchange of this step.
                run.wait(lambda: run.ranks_at(at) == COUNT, f"step {at} with four nodes")  # noqa: B023
                run.nodes[1 + number % (COUNT - 1)].connect(up=False)
                run.gate((at + 4, COUNT))
                back = time.monotonic() + down
                run.wait(lambda: time.monotonic() > back, "the end of the partition")  # noqa: B023
                run.nodes[1 + number % (COUNT - 1)].connect()
                begin = time.time()
                run.wait(lambda: run.reached(at + 1, COUNT), f"step {at + 1} with four nodes")  # noqa: B023
                late.append(time.time() - begin)
                found.count += 1
            run.gate()
            run.finish()
            found.failures += compare(run, expected, reference, steps)
        except AssertionError as error:
            found.failures.append(str(error))
        finally:
            run.end()
    starts = len({entry[2] for entry in run.entries()})
    if late:
        found.notes = [
            f"`training.ddp_timeout` of {timeout:g} s; {starts} starts of the processes; median "
            f"{sorted(late)[len(late) // 2]:.0f} s from the return of the link to the next step"
        ]
    messages = [message for message in run.messages() if "ddp_timeout" in message]
    if messages:
        found.messages["a node cut off from the network"] = messages[-1]
    if starts > 1 and not messages:
        found.failures.append("no rank named the timeout")
    return found


def _alone(ground: Ground, steps: int) -> tuple[dict[int, list[str]], Path]:
    """Train in one process; return the rows of each step and the folder of the run."""
    key = ("nodes", steps)
    if key not in ground.references:
        with namespaces.Nodes(1) as made:
            run = Run(ground, made.nodes, steps)
            child = ground.nursery.start(run.command, code=run.trap(0))
            assert child.wait(_LONG) == 0, child.output()
            run.end()
        ground.references[key] = run
    run = ground.references[key]
    return {entry[0]: sorted(entry[4]) for entry in run.entries()}, run.folder


def compare(run: Run, expected: dict[int, list[str]], reference: Path, steps: int) -> list[str]:
    """Return how a disturbed run differs: in the rows of a step as it was last made, or in its losses."""
    last: dict[int, tuple[float, str]] = {}
    for step, _, start, moment, _ in run.entries():
        last[step] = max(last.get(step, (0.0, "")), (moment, start))
    failures = []
    for step in range(steps):
        entries = [entry for entry in run.entries() if entry[0] == step and entry[2] == last.get(step, (0, ""))[1]]
        rows = sorted(row for entry in entries for row in entry[4])
        if rows != expected[step]:
            failures.append(f"step {step}: {len(rows)} rows, expected {len(expected[step])}, or other rows")
    losses, alone = ([line["loss"] for line in curve(folder) if "loss" in line] for folder in (run.folder, reference))
    if len(losses) != steps:
        failures.append(f"{len(losses)} losses were logged in {steps} steps")
    differences = [abs(a / b - 1) for a, b in zip(losses, alone, strict=False)]
    # Three ranks divide a batch into other micro-batches than four, so the dropout masks differ. The rows do not.
    if differences and max(differences) > 0.01:
        failures.append(f"losses differ by up to {max(differences):.2g}")
    return failures
