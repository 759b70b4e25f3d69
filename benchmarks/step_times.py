"""Measured step times on a slow network, compared with the model of docs/scaling.md.

    python benchmarks/step_times.py --processes 2 4 8 --rates 20 50
    python benchmarks/step_times.py --processes 4 8 --per-node 2 --kinds ddp hsdp

Each rank, or each few of them, is a node: a network namespace whose link sends at a limited rate (`namespaces.py`). All
ranks share the cores of this machine, so what the cores do is measured, and `scaling_model.py` adds the network:

- predicted = the step without limits + the network's exposed time
- from the computation alone: the same processes, each with its part of the batch, without an exchange, + the same time

What is compared takes turns in one run: processes stay alive between their turns, and the rate of the links changes
between blocks of steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import scaling_model
import torch
from collectives import CHANGES, RECIPE
from namespaces import Node, Nodes, missing

from headstart.core import config
from headstart.core.processes import die_with_parent
from headstart.stages.plan import synthetic
from headstart.stages.pretrain.build import build_model, objective_of, tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop, RunInfo, StepResult
from headstart.training.phases import Phase
from headstart.training.world import joined

ROWS, LENGTH = 8, 32
"""Rows per update over all ranks, and tokens per row."""
GOAL = 0.2
"""Largest error of a predicted step time."""
_PORT = 29500
_LOOPBACK = 1e9
"""Bytes per second between two ranks of a node, far above the rates of the links."""


class Turns(Callback):
    """Trains a number of steps whenever the parent asks for it, and reports the time of each."""

    def __init__(self, channel: Connection) -> None:
        """Store the channel to the parent."""
        self.channel, self.left, self.times = channel, 0, list[float]()

    def on_train_begin(self, loop: Loop) -> None:
        """Report the size of the model and wait for the first turn."""
        parameters = dict(loop.learner.module.named_parameters())
        inside = sum(p.numel() for name, p in parameters.items() if ".layers." in name)
        layers = len({name.split(".layers.")[1].split(".")[0] for name in parameters if ".layers." in name})
        whole = sum(p.numel() for p in parameters.values())
        self.channel.send((layers, inside, whole - inside))
        self._wait()

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Note the time; at the end of a turn, report it and wait for the next one."""
        self.times.append(time.perf_counter())
        self.left -= 1
        if not self.left:
            self.channel.send(self.times)
            self._wait()

    def _wait(self) -> None:
        self.left, self.times = self.channel.recv(), []


@dataclass
class Ranks:
    """Processes that train together, or side by side without an exchange (`parallel` is "alone")."""

    parallel: str
    channels: list[Connection]
    pids: list[int]
    shape: tuple[int, int, int]
    """Layers, parameters inside of them, and parameters outside of them."""

    def turn(self, steps: int) -> list[float]:
        """Train some steps and return the seconds of each, the mean over the ranks; the first step is left out."""
        for channel in self.channels:
            channel.send(steps + 1)
        times = [channel.recv() for channel in self.channels]
        each = [[later - earlier for earlier, later in itertools.pairwise(t)] for t in times]
        return [statistics.mean(of_step) for of_step in zip(*each, strict=True)]

    def end(self) -> None:
        """End the processes."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def start(parallel: str, nodes: list[Node], per_node: int, size: str, port: int) -> Ranks:
    """Fork the ranks of each node; each waits for its first turn."""
    channels: list[Connection] = []
    pids: list[int] = []
    for rank, node in enumerate(node for node in nodes for _ in range(per_node)):
        here, there = Pipe()
        pid = os.fork()
        if not pid:
            try:
                for channel in [*channels, here]:
                    channel.close()
                place = Place(node, nodes[0].address, rank, len(nodes) * per_node, per_node, port)
                _train(parallel, place, size, there)
            except BaseException as error:
                print(f"rank {rank} of {parallel}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        there.close()
        channels.append(here)
        pids.append(pid)
    shapes = [channel.recv() for channel in channels]
    return Ranks(parallel, channels, pids, shapes[0])


@dataclass(frozen=True)
class Place:
    """Where a rank is: its node, the address of the first node, and its number among all ranks."""

    node: Node
    head: str
    rank: int
    count: int
    per_node: int
    port: int


def _train(parallel: str, place: Place, size: str, channel: Connection) -> None:
    """Train as one of several ranks until the parent ends this process."""
    die_with_parent(os.getppid())
    place.node.enter()
    torch.set_num_threads(1)
    alone, count = parallel == "alone", place.count
    world = {"WORLD_SIZE": 1 if alone else count, "RANK": place.rank, "LOCAL_RANK": place.rank % place.per_node}
    world |= {"LOCAL_WORLD_SIZE": place.per_node, "MASTER_ADDR": place.head, "MASTER_PORT": place.port}
    os.environ |= {name: str(value) for name, value in world.items()} | {"OMP_NUM_THREADS": "1"}
    rows = ROWS // count if alone else ROWS
    changes = [*CHANGES, "training.budget=1000000 steps", f"backbone.size={size}", "training.logging_steps=1000000",
               f"training.parallel={'ddp' if alone else parallel}", f"training.batch_tokens={rows * LENGTH}",
               f"training.micro_batch_size={ROWS // count}"]  # fmt: skip
    recipe: Any = config.load(RECIPE, PretrainRecipe, changes)
    objective = objective_of(recipe)
    vocabulary = synthetic.vocabulary_of(tokenizer_of(recipe), objective.special_tokens())
    noise = [CorpusRows("", 1.0, synthetic.NoiseRows(vocabulary, objective.row_shape(LENGTH)))]
    with joined() as joint, tempfile.TemporaryDirectory() as home:
        learner = PretrainLearner(build_model(recipe, vocabulary, objective), objective, noise, noise, vocabulary, 0)
        phases = [Phase(0.0, learner, recipe.training.rows_of(LENGTH))]
        turns = Turns(channel)
        Loop(learner, recipe.training, RunInfo(Path(home), ""), phases, callbacks=[turns], world=joint).run()


def usable(nodes: list[Node], mbit: float | None) -> tuple[float, float]:
    """Return the bytes per second of one TCP connection between two nodes, and the seconds of half a round trip."""
    for node in nodes[:2]:
        node.limit(mbit)
    reader, writer = Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        try:
            nodes[1].enter()
            with socket.create_server((nodes[1].address, _PORT - 1)) as server:
                writer.send("ready")
                connection, _ = server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(50):
                    connection.sendall(connection.recv(1))
                received, begin = 0, 0.0
                while piece := connection.recv(1 << 20):
                    begin = begin or time.perf_counter()
                    received += len(piece)
                writer.send(received / (time.perf_counter() - begin))
        finally:
            os._exit(0)
    reader.recv()
    out, into = Pipe(duplex=False)
    other = os.fork()
    if not other:
        try:
            nodes[0].enter()
            with socket.create_connection((nodes[1].address, _PORT - 1)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                trips = []
                for _ in range(50):
                    begin = time.perf_counter()
                    connection.sendall(b"x")
                    connection.recv(1)
                    trips.append(time.perf_counter() - begin)
                into.send(statistics.median(trips) / 2)
                connection.sendall(bytes(int(2 * 1e6 * (mbit or 1000) / 8)))
        finally:
            os._exit(0)
    latency, speed = out.recv(), reader.recv()
    for child in (pid, other):
        os.waitpid(child, 0)
    return speed, latency


def predict(ranks: Ranks, per_node: int, compute: float, speed: float, latency: float) -> scaling_model.StepCost:
    """Return the model's step for a measured computation, and the bandwidth and latency of a node's link."""
    layers, inside, outside = ranks.shape
    network = scaling_model.Network(
        layers, inside // layers, outside, 256, LENGTH, outside, embedding_parameters=outside
    )
    count = len(ranks.pids)
    per_device = network.flops_per_token * ROWS * LENGTH / count
    cluster = scaling_model.Cluster(
        peak_flops=per_device / compute, efficiency=1.0, devices_per_node=per_node, node_bytes_per_second=_LOOPBACK,
        network_bytes_per_second=speed / per_node, node_latency=latency, network_latency=latency,
        disk_bytes_per_second=1e9, hashed_bytes_per_second=1e9, memory=1e15, gloo=True,
    )  # fmt: skip
    return scaling_model.step(network, cluster, ranks.parallel, count, ROWS * LENGTH)


def measure(count: int, given: argparse.Namespace) -> None:
    """Measure one number of ranks, and print a line of JSON for each kind of parallelism and rate."""
    kinds, rates, per_node, steps = given.kinds, given.rates, given.per_node, given.steps
    with Nodes(count // per_node) as made:
        nodes = made.nodes
        links = {rate: usable(nodes, rate) for rate in rates}
        for node in nodes:
            node.limit(None)
        groups = [
            start(kind, nodes, per_node, given.size, _PORT + number) for number, kind in enumerate(["alone", *kinds])
        ]
        times: dict[tuple[str, float | None], list[float]] = {}
        sent: dict[tuple[str, float | None], float] = {}
        try:
            for cycle in range(given.repetitions + 1):
                for rate in [None, *rates] if cycle else [None]:  # The first cycle warms up.
                    for group in groups:
                        for node in nodes:
                            node.limit(rate)
                        before = sum(node.sent() for node in nodes)
                        found = group.turn(steps if cycle else 1)
                        if cycle:
                            times.setdefault((group.parallel, rate), []).extend(found)
                            total = sum(node.sent() for node in nodes) - before
                            sent[group.parallel, rate] = total / len(nodes) / (steps + 1)
        finally:
            for group in groups:
                group.end()
    # Every block without an exchange measures the same computation, whatever the rate.
    alone = [seconds for (kind, _), values in times.items() if kind == "alone" for seconds in values]
    compute = statistics.median(alone)
    for group in groups[1:]:
        for rate in rates:
            cost = predict(group, per_node, compute, *links[rate])
            values, unlimited = times[group.parallel, rate], statistics.median(times[group.parallel, None])
            found, predicted = statistics.median(values), unlimited + cost.exposed
            name = f"step of {group.parallel}, {count} ranks, {per_node} per node, {rate:g} Mbit/s, against the model"
            print(json.dumps({
                "name": name,
                "ours": round(found, 4), "theirs": round(predicted, 4),
                "ratio": round(min(found, predicted) / max(found, predicted), 4), "goal": 1 - GOAL, "unit": "s",
                "error": round(predicted / found - 1, 4), "unlimited": round(unlimited, 4),
                "compute": round(compute, 4), "error_from_compute": round(cost.seconds / found - 1, 4),
                "network": round(cost.communication, 4), "exposed": round(cost.exposed, 4),
                "sent_mb": round(sent[group.parallel, rate] / 1e6, 3), "predicted_mb": round(cost.leaving / 1e6, 3),
                "usable_mb_s": round(links[rate][0] / 1e6, 2), "latency_us": round(links[rate][1] * 1e6, 1),
                "quartiles": [round(q, 4) for q in statistics.quantiles(values, n=4)[::2]], "steps": len(values),
                "load": round(os.getloadavg()[0], 1),
            }), flush=True)  # fmt: skip


def main() -> None:
    """Measure each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 50.0], help="Mbit/s of each link")
    parser.add_argument("--per-node", type=int, default=1, help="ranks that share a node and its link")
    parser.add_argument("--kinds", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--size", default="mini", help="size of the encoder")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn, after one that is not counted")
    parser.add_argument("--repetitions", type=int, default=3, help="turns of each condition")
    parser.add_argument("--quick", action="store_true", help="do as little work as possible, as a test")
    given = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return
    if given.quick:
        given.processes, given.rates, given.kinds, given.steps, given.repetitions = [2], [400.0], ["ddp"], 2, 1
    for count in given.processes:
        measure(count, given)


if __name__ == "__main__":
    main()
