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
"""The share of a step's computation during which gradients can be exchanged."""


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
    latency: float
    """Seconds of one hop of a collective."""
    disk_bytes_per_second: float
    """What a node writes."""


@dataclass(frozen=True)
class Step:
    """One update on so many devices, in seconds and bytes."""

    compute: float
    communication: float
    exposed: float
    """What of the communication the computation does not hide."""
    sent: float
    """Bytes that each device sends."""
    state: float
    """Bytes of weights, gradients and moments on each device."""
    checkpoint: float
    """Seconds of writing weights and moments."""

    @property
    def seconds(self) -> float:
        """Return how long the update takes."""
        return self.compute + self.exposed

    @property
    def bottleneck(self) -> str:
        """Name what most of the time goes to."""
        return "computing" if self.exposed < self.compute else "network"


def payload(network: Network, parallel: Parallel) -> dict[str, float]:
    """Return the bytes of each kind of collective in an update, whole tensors, whatever the number of devices.

    DDP sums all gradients. FSDP2 gathers the weights of a layer twice, before its forward and its backward pass, those
    outside of layers once, and scatters the sums of all gradients.
    """
    inside, whole = FP32 * network.layers * network.layer_parameters, FP32 * network.parameters
    if parallel == "ddp":
        return {"all_reduce": whole}
    return {"all_gather": whole + inside, "reduce_scatter": whole}


def sent(kind: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends for a collective of a whole tensor, round a ring."""
    return (2 if kind == "all_reduce" else 1) * size * (devices - 1) / devices


def state(network: Network, parallel: Parallel, devices: int) -> float:
    """Return the bytes of weights, gradients and AdamW's two moments on each device (Rajbhandari et al. 2020, ZeRO)."""
    return 4 * FP32 * network.parameters / (devices if parallel == "fsdp" else 1)


def step(network: Network, cluster: Cluster, parallel: Parallel, devices: int, tokens: float) -> Step:
    """Return what an update over so many tokens costs on so many devices."""
    compute = network.flops_per_token * tokens / devices / (cluster.peak_flops * cluster.efficiency)
    near = devices <= cluster.devices_per_node
    speed = cluster.node_bytes_per_second if near else cluster.network_bytes_per_second
    each = sum(sent(kind, size, devices) for kind, size in payload(network, parallel).items())
    calls = math.ceil(FP32 * network.parameters / BUCKET) if parallel == "ddp" else 3 * network.layers + 2
    hops = 2 * math.ceil(math.log2(devices)) if devices > 1 else 0
    communication = each / speed + calls * hops * cluster.latency
    hidden = compute * (_BACKWARD if parallel == "ddp" else 1.0)
    writers = 1 if parallel == "ddp" else math.ceil(devices / cluster.devices_per_node)
    return Step(
        compute=compute,
        communication=communication,
        exposed=max(0.0, communication - hidden),
        sent=each,
        state=state(network, parallel, devices),
        checkpoint=3 * FP32 * network.parameters / (writers * cluster.disk_bytes_per_second),
    )
