"""What a training step costs on many devices, by arithmetic: FLOPs, bytes over the network, memory, checkpoints.

A model, not a measurement: docs/scaling.md states what it assumes and what of it was checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Parallel = Literal["ddp", "fsdp"]

FP32 = 4
"""Bytes of a weight, a gradient or a moment: the loop keeps them in fp32 and computes in bf16."""
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP exchanges together, torch's default."""
_BACKWARD = 2 / 3
"""The share of a pass's computation during which gradients can be exchanged."""
_ACTIVATIONS = 34
"""Bytes that a layer keeps of a token for the backward pass, for each unit of width, without the scores of attention
(Korthikanti et al. 2022, Reducing Activation Recomputation)."""


@dataclass(frozen=True)
class Network:
    """As much of a network as its cost depends on."""

    layers: int
    layer_parameters: int
    outer_parameters: int
    """Those outside of repeated layers: embeddings and head."""
    width: int
    context: int
    head_parameters: int
    predicted: float = 1.0
    """The share of tokens on which the head is computed."""
    attended: float = 1.0
    """The share of a row that a token attends to: half of it on average where it looks back alone."""

    @property
    def parameters(self) -> int:
        """Count all parameters."""
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def flops_per_token(self) -> float:
        """Return the FLOPs of a token, forwards and backwards: six for each weight it meets, and attention's own."""
        weights = self.layers * self.layer_parameters + self.predicted * self.head_parameters
        attention = 2 * self.layers * self.width * self.context * self.attended
        return 6 * (weights + attention)

    @property
    def activations_per_token(self) -> float:
        """Return the bytes that a token takes between its forward and its backward pass."""
        return _ACTIVATIONS * self.width * self.layers


@dataclass(frozen=True)
class Cluster:
    """Devices, links and disks; every figure is an assumption to be stated."""

    peak_flops: float
    efficiency: float
    """The share of the peak that a step's computation reaches."""
    devices_per_node: int
    node_bytes_per_second: float
    """What a device sends to others of its node, usable."""
    network_bytes_per_second: float
    """What a device sends to other nodes, usable."""
    node_latency: float
    """Seconds of one hop of a collective inside a node."""
    network_latency: float
    """Seconds of one hop of a collective between nodes."""
    disk_bytes_per_second: float
    """What a node writes."""
    hashed_bytes_per_second: float
    """What a core hashes."""
    memory: float
    """Bytes on a device for weights, gradients, moments and what a pass keeps."""

    def nodes(self, devices: int) -> int:
        """Return how many nodes so many devices stand in."""
        return math.ceil(devices / self.devices_per_node)

    def hops(self, kind: str, devices: int) -> float:
        """Return the seconds of a collective's hops: a sum goes up and down a tree, others go round a ring."""
        nodes = self.nodes(devices)
        if kind == "all_reduce":
            inside = math.ceil(math.log2(min(devices, self.devices_per_node)))
            return 2 * (inside * self.node_latency + math.ceil(math.log2(nodes)) * self.network_latency)
        between = nodes if nodes > 1 else 0
        return max(0, devices - 1 - between) * self.node_latency + between * self.network_latency


@dataclass(frozen=True)
class Step:
    """One update on so many devices, in seconds and bytes."""

    passes: int
    """Forward and backward passes of each device, which its memory asks for."""
    compute: float
    communication: float
    exposed: float
    """What of the communication the computation does not hide."""
    sent: float
    """Bytes that each device sends."""
    state: float
    """Bytes of weights, gradients and moments on each device."""
    checkpoint: float
    """Seconds of writing weights and moments and of hashing them: whoever writes a part does, a lone leader twice."""

    @property
    def seconds(self) -> float:
        """Return how long the update takes."""
        return self.compute + self.exposed

    @property
    def bottleneck(self) -> str:
        """Name what most of the time goes to."""
        return "computing" if self.exposed < self.compute else "network"


def payload(network: Network, parallel: Parallel, passes: int = 1) -> dict[str, float]:
    """Return the bytes of each kind of collective in an update, whole tensors, whatever the number of devices.

    DDP sums all gradients, after the last pass. FSDP2 gathers the weights of a layer twice in every pass, before its
    forward and its backward half, those outside of layers once, and scatters the sums of all gradients after the last.
    """
    inside, whole = FP32 * network.layers * network.layer_parameters, FP32 * network.parameters
    if parallel == "ddp":
        return {"all_reduce": whole}
    return {"all_gather": passes * (whole + inside), "reduce_scatter": whole}


def sent(kind: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends for a collective of a whole tensor, round a ring."""
    return (2 if kind == "all_reduce" else 1) * size * (devices - 1) / devices


def state(network: Network, parallel: Parallel, devices: int, passes: int = 1) -> float:
    """Return the bytes of weights, gradients and AdamW's two moments on each device (Rajbhandari et al. 2020, ZeRO).

    Gradients that several passes add up to are whole on every device until the last.
    """
    kept = FP32 * network.parameters / (devices if parallel == "fsdp" else 1)
    return 3 * kept + (FP32 * network.parameters if passes > 1 else kept)


def passes_of(network: Network, cluster: Cluster, parallel: Parallel, devices: int, tokens: float) -> int:
    """Return the passes in which a device's share of an update fits into its memory, beside its state."""
    asked, found = tokens / devices * network.activations_per_token, 0
    for supposed in (1, 2):
        room = cluster.memory - state(network, parallel, devices, supposed)
        if room <= 0:
            raise ValueError(
                f"the state of {network.parameters:,} parameters does not fit into {cluster.memory:g} bytes"
            )
        found = math.ceil(asked / room)
        if found <= 1:
            break
    return max(1, found)


def step(network: Network, cluster: Cluster, parallel: Parallel, devices: int, tokens: float) -> Step:
    """Return what an update over so many tokens costs on so many devices."""
    compute = network.flops_per_token * tokens / devices / (cluster.peak_flops * cluster.efficiency)
    passes = passes_of(network, cluster, parallel, devices, tokens)
    asked = payload(network, parallel, passes)
    near = devices <= cluster.devices_per_node
    speed = cluster.node_bytes_per_second if near else cluster.network_bytes_per_second
    each = sum(sent(kind, size, devices) for kind, size in asked.items())
    calls = {
        "all_reduce": math.ceil(FP32 * network.parameters / BUCKET),
        "all_gather": passes * (2 * network.layers + 1),
        "reduce_scatter": network.layers + 1,
    }
    communication = each / speed + sum(calls[kind] * cluster.hops(kind, devices) for kind in asked)
    hidden = compute * (_BACKWARD / passes if parallel == "ddp" else 1.0)
    kept = 3 * FP32 * network.parameters
    nodes, writers = (1, 1) if parallel == "ddp" else (cluster.nodes(devices), devices)
    return Step(
        passes=passes,
        compute=compute,
        communication=communication,
        exposed=max(0.0, communication - hidden),
        sent=each,
        state=state(network, parallel, devices, passes),
        checkpoint=kept / (nodes * cluster.disk_bytes_per_second)
        + (2 if parallel == "ddp" else 1) * kept / (writers * cluster.hashed_bytes_per_second),
    )
