"""Compute the cost of a training step on 8 to 1,024 devices: FLOPs, bytes over the network, memory, checkpoints.

    python benchmarks/scaling_model.py

prints the tables of docs/scaling.md, which states the assumptions and what was checked. It is a model, not a
measurement; benchmarks/collectives.py compares its bytes with those counted on gloo, and benchmarks/step_times.py its
times with those measured on slow networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Parallel = Literal["ddp", "fsdp", "hsdp"]

FP32 = 4
"""Bytes of a weight, a gradient or a moment: the loop keeps them in fp32 and computes in bf16."""
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP exchanges together, torch's default."""
FIRST_BUCKET = 2**20
"""Bytes of the first such bucket, torch's default."""
_BACKWARD = 2 / 3
"""The fraction of a pass's computation during which gradients can be exchanged."""
_ACTIVATIONS = 34
"""Bytes per token and unit of width that a layer keeps for the backward pass, without the attention scores
(Korthikanti et al. 2022, Reducing Activation Recomputation)."""


@dataclass(frozen=True)
class Network:
    """The properties of a network that its cost depends on."""

    layers: int
    layer_parameters: int
    outer_parameters: int
    """Parameters outside of repeated layers: embeddings and head."""
    width: int
    context: int
    head_parameters: int
    predicted: float = 1.0
    """The fraction of tokens on which the head is computed."""
    attended: float = 1.0
    """The fraction of a row that a token attends to: on average half of it in a causal network."""
    embedding_parameters: int = 0
    """Parameters outside of layers whose gradients are complete only at the end of the backward pass."""

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def flops_per_token(self) -> float:
        """Return the FLOPs per token, forward and backward: six per weight used, and those of attention."""
        weights = self.layers * self.layer_parameters + self.predicted * self.head_parameters
        attention = 2 * self.layers * self.width * self.context * self.attended
        return 6 * (weights + attention)

    @property
    def activations_per_token(self) -> float:
        """Return the bytes per token that are kept between the forward and the backward pass."""
        return _ACTIVATIONS * self.width * self.layers


@dataclass(frozen=True)
class Cluster:
    """Devices, links and disks; every number is an assumption."""

    peak_flops: float
    efficiency: float
    """The fraction of the peak that a step's computation reaches."""
    devices_per_node: int
    node_bytes_per_second: float
    """Usable bandwidth of a device to others of its node."""
    network_bytes_per_second: float
    """Usable bandwidth of a device to other nodes."""
    node_latency: float
    """Seconds per hop of a collective inside a node."""
    network_latency: float
    """Seconds per hop of a collective between nodes."""
    disk_bytes_per_second: float
    """Write speed of a node."""
    hashed_bytes_per_second: float
    """Hashing speed of a core."""
    memory: float
    """Bytes on a device for weights, gradients, moments and activations."""
    gloo: bool = False
    """Gloo instead of NCCL: a reduce-scatter sends as much as an all-reduce, an all-reduce is a ring, and FSDP2 waits
    for each of its collectives."""

    def nodes(self, devices: int) -> int:
        """Return the number of nodes that hold this many devices."""
        return math.ceil(devices / self.devices_per_node)

    def hops(self, kind: str, devices: int) -> float:
        """Return the seconds of a collective's hops: all-reduce uses a tree up and down, the others a ring."""
        nodes = self.nodes(devices)
        if kind == "all_reduce" and not self.gloo:
            inside = math.ceil(math.log2(min(devices, self.devices_per_node)))
            return 2 * (inside * self.node_latency + math.ceil(math.log2(nodes)) * self.network_latency)
        between = nodes if nodes > 1 else 0
        around = max(0, devices - 1 - between) * self.node_latency + between * self.network_latency
        return (2 if self.sends_twice(kind) else 1) * around

    def sends_twice(self, kind: str) -> bool:
        """Return True if each device sends a tensor twice, up to 1/n: to add its parts up, and to spread the sums."""
        return kind == "all_reduce" or (self.gloo and kind == "reduce_scatter")

    def ring_speed(self, devices: int) -> float:
        """Return the usable bandwidth of a device in a ring; rings leave a node over the links of all its devices."""
        across = self.devices_per_node * self.network_bytes_per_second
        return self.node_bytes_per_second if self.nodes(devices) == 1 else min(self.node_bytes_per_second, across)


@dataclass(frozen=True)
class Exchange:
    """All collectives of one kind in an update."""

    kind: str
    size: float
    """Bytes of the whole tensors, as they enter the process group."""
    bare: float
    """Bytes of the tensors that are exchanged before or after all computation, which nothing hides."""
    calls: int
    sent: float
    """Bytes that each device sends."""
    leaving: float
    """Bytes that leave each node."""
    seconds: float
    bare_seconds: float


@dataclass(frozen=True)
class StepCost:
    """The cost of one update, in seconds and bytes."""

    passes: int
    """Forward and backward passes per device, as many as its memory requires."""
    compute: float
    communication: float
    exposed: float
    """Communication that is not hidden behind computation."""
    sent: float
    """Bytes that each device sends."""
    leaving: float
    """Bytes that leave each node."""
    state: float
    """Bytes of weights, gradients and moments on each device."""
    checkpoint: float
    """Seconds to write and hash weights and moments. Under DDP rank 0 writes everything and hashes it twice; under HSDP
    the devices of one node write."""

    @property
    def seconds(self) -> float:
        """Return the duration of the update."""
        return self.compute + self.exposed

    @property
    def bottleneck(self) -> str:
        """Return what takes most of the time."""
        return "computing" if self.exposed < self.compute else "network"


def payload(network: Network, parallel: Parallel, passes: int = 1) -> dict[str, float]:
    """Return the bytes of each kind of collective in an update, as whole tensors, for any number of devices.

    DDP reduces all gradients after the last pass. FSDP2 gathers the weights of a layer twice per pass (before its
    forward and its backward half), those outside of layers once, and reduce-scatters all gradients after the last pass.
    HSDP does the same inside a node, and then all-reduces each device's part of the gradients between the nodes.
    """
    inside, whole = FP32 * network.layers * network.layer_parameters, FP32 * network.parameters
    if parallel == "ddp":
        return {"all_reduce": whole}
    return {"all_gather": passes * (whole + inside), "reduce_scatter": whole}


def sent(kind: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends for a collective of a whole tensor on a ring."""
    return (2 if kind == "all_reduce" else 1) * size * (devices - 1) / devices


def state(network: Network, parallel: Parallel, devices: int, passes: int = 1, devices_per_node: int = 8) -> float:
    """Return the bytes of weights, gradients and AdamW's two moments on each device (Rajbhandari et al. 2020, ZeRO).

    Gradients that accumulate over several passes are whole on every device until the last pass.
    """
    shards = {"ddp": 1, "fsdp": devices, "hsdp": min(devices, devices_per_node)}[parallel]
    kept = FP32 * network.parameters / shards
    return 3 * kept + (FP32 * network.parameters if passes > 1 else kept)


def passes_of(network: Network, cluster: Cluster, parallel: Parallel, devices: int, tokens: float) -> int:
    """Return the passes in which a device's part of an update fits into its memory beside its state."""
    activations, passes = tokens / devices * network.activations_per_token, 0
    for assumed in (1, 2):
        free = cluster.memory - state(network, parallel, devices, assumed, cluster.devices_per_node)
        if free <= 0:
            raise ValueError(
                f"the state of {network.parameters:,} parameters does not fit into {cluster.memory:g} bytes"
            )
        passes = math.ceil(activations / free)
        if passes <= 1:
            break
    return max(1, passes)


def exchanges(
    network: Network, cluster: Cluster, parallel: Parallel, devices: int, passes: int = 1
) -> list[Exchange]:  # fmt: skip
    """Return the collectives of an update.

    The last bucket of DDP is complete at the end of the backward pass; it contains the embeddings. FSDP2 gathers the
    weights outside of layers before it can compute, and reduces their gradients when it has computed.
    """
    whole, outer = FP32 * network.parameters, FP32 * network.outer_parameters
    last_bucket = min(max(0, whole - FIRST_BUCKET), max(BUCKET, FP32 * network.embedding_parameters))
    group = min(devices, cluster.devices_per_node) if parallel == "hsdp" else devices
    calls = {
        "all_reduce": math.ceil(whole / BUCKET),
        "all_gather": passes * (2 * network.layers + 1),
        "reduce_scatter": network.layers + 1,
    }
    found = []
    for kind, size in payload(network, parallel, passes).items():
        bare = last_bucket if parallel == "ddp" else outer
        factor = sent("all_reduce" if cluster.sends_twice(kind) else kind, 1.0, group)
        leaving = factor * size if cluster.nodes(group) > 1 else 0.0
        seconds = factor * size / cluster.ring_speed(group) + calls[kind] * cluster.hops(kind, group)
        bare_seconds = factor * bare / cluster.ring_speed(group)
        found.append(Exchange(kind, size, bare, calls[kind], factor * size, leaving, seconds, bare_seconds))
    nodes = cluster.nodes(devices)
    if parallel == "hsdp" and nodes > 1:
        factor, count = sent("all_reduce", 1.0 / group, nodes), network.layers + 1
        hops = 2 * (nodes - 1 if cluster.gloo else math.ceil(math.log2(nodes))) * cluster.network_latency
        speed = cluster.network_bytes_per_second
        found.append(
            Exchange("all_reduce", whole / group, outer / group, count, factor * whole, group * factor * whole,
                     factor * whole / speed + count * hops, factor * outer / speed)
        )  # fmt: skip
    return found


def step(network: Network, cluster: Cluster, parallel: Parallel, devices: int, tokens: float) -> StepCost:
    """Return the cost of an update of `tokens` tokens on `devices` devices.

    Gathers are hidden behind all computation, reductions behind the backward half of the last pass. What comes first
    or last is hidden behind nothing.
    """
    compute = network.flops_per_token * tokens / devices / (cluster.peak_flops * cluster.efficiency)
    passes = passes_of(network, cluster, parallel, devices, tokens)
    needed = exchanges(network, cluster, parallel, devices, passes)
    communication = sum(exchange.seconds for exchange in needed)
    reductions = sum(exchange.seconds for exchange in needed if exchange.kind != "all_gather")
    bare = sum(exchange.bare_seconds for exchange in needed)
    exposed = max(0.0, communication - compute, reductions - compute * _BACKWARD / passes, bare)
    if cluster.gloo and parallel != "ddp":
        exposed = communication
    saved = 3 * FP32 * network.parameters
    nodes, writers = {
        "ddp": (1, 0.5), "fsdp": (cluster.nodes(devices), devices), "hsdp": (1, min(devices, cluster.devices_per_node))
    }[parallel]  # fmt: skip
    return StepCost(
        passes=passes,
        compute=compute,
        communication=communication,
        exposed=exposed,
        sent=sum(exchange.sent for exchange in needed),
        leaving=sum(exchange.leaving for exchange in needed),
        state=state(network, parallel, devices, passes, cluster.devices_per_node),
        checkpoint=saved / (nodes * cluster.disk_bytes_per_second)
        + saved / (writers * cluster.hashed_bytes_per_second),
    )


NETWORKS = {
    # 12 layers of 12 × 768²; the head on 15 % of tokens, its matrix tied to the embeddings (Devlin et al. 2019).
    "BERT-base, rows of 512, 2.1 M tokens an update": (
        Network(
            12, 12 * 768**2, 30522 * 768 + 514 * 768 + 768**2, 768, 512, 30522 * 768 + 768**2, predicted=0.15,
            embedding_parameters=30522 * 768 + 514 * 768,
        ),
        4096 * 512,
    ),
    # TinyLlama's shape (Zhang et al. 2024): 22 layers, 2,048 wide, 5,632 in the feed-forward, 4 of 32 heads for keys.
    "decoder of 1.1 B, rows of 2,048, 4.2 M tokens an update": (
        Network(
            22, 2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 5632, 2 * 32000 * 2048, 2048, 2048, 32000 * 2048,
            attended=0.5, embedding_parameters=32000 * 2048,
        ),
        2048 * 2048,
    ),
}  # fmt: skip
CLUSTER = Cluster(
    peak_flops=989e12, efficiency=0.4, devices_per_node=8, node_bytes_per_second=0.8 * 450e9,
    network_bytes_per_second=0.8 * 50e9, node_latency=1e-6, network_latency=10e-6, disk_bytes_per_second=2e9,
    hashed_bytes_per_second=1.5e9, memory=0.9 * 80e9,
)  # fmt: skip
DEVICES = (8, 64, 256, 1024)
TEXT_BYTES, BYTES_PER_TOKEN, STORED = 10e12, 4.4, 2
"""Bytes of text, its bytes per token under WordPiece of 16k, and the bytes of a stored token."""


def table(network: Network, tokens: int) -> str:
    """Return a Markdown table with a row for each number of devices and kind of parallelism."""
    header = (
        "| devices | | passes | compute, ms | network, ms | exposed, ms | sent by each, GB | leaves a node, GB | "
        "state on each, GB | M tokens/s | reads, MB/s a node | checkpoint, s | days for 10 TB | most time goes to |"
    )
    lines = [header, "|---:|---" + "|---:" * 11 + "|---|"]
    for devices in DEVICES:
        for parallel in get_args(Parallel):
            if parallel == "hsdp" and devices <= CLUSTER.devices_per_node:
                continue  # On one node it is FSDP.
            cost = step(network, CLUSTER, parallel, devices, tokens)
            speed = tokens / cost.seconds
            nodes = max(1, devices // CLUSTER.devices_per_node)
            days = TEXT_BYTES / BYTES_PER_TOKEN / speed / 86400
            cells = [
                f"{devices:,}", parallel, str(cost.passes), f"{1e3 * cost.compute:,.1f}",
                f"{1e3 * cost.communication:,.1f}", f"{1e3 * cost.exposed:,.1f}", f"{cost.sent / 1e9:.2f}",
                f"{cost.leaving / 1e9:.2f}", f"{cost.state / 1e9:.2f}", f"{speed / 1e6:,.2f}",
                f"{speed * STORED / nodes / 1e6:.2f}", f"{cost.checkpoint:.2f}", f"{days:,.1f}", cost.bottleneck,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables() -> str:
    """Return a heading and a table for each network."""
    parts = []
    for name, (network, tokens) in NETWORKS.items():
        millions, billions = network.parameters / 1e6, network.flops_per_token / 1e9
        parts += [f"**{name}**: {millions:,.1f} M parameters, {billions:.3g} GFLOPs a token", table(network, tokens)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(tables())
