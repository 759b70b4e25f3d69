"""The model of a training step on many devices: counts by hand, properties at any size, and the published tables."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]


def _load() -> ModuleType:
    """Import the script under a name of its own; dataclasses need it among the modules."""
    spec = importlib.util.spec_from_file_location("scaling_model", ROOT / "benchmarks" / "scaling_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


model = _load()
NETWORK = model.Network(4, 1_000_000, 500_000, width=256, context=128, head_parameters=400_000, predicted=0.15)
MACHINES = model.Cluster(
    peak_flops=1e14, efficiency=0.5, devices_per_node=8, node_bytes_per_second=1e11, network_bytes_per_second=1e10,
    node_latency=1e-6, network_latency=1e-5, disk_bytes_per_second=1e9, hashed_bytes_per_second=1e9, memory=1e11,
)  # fmt: skip
devices = st.integers(1, 2048)
kinds = st.sampled_from(["ddp", "fsdp", "hsdp"])


def test_parameters_and_flops_by_hand():
    assert NETWORK.parameters == 4_500_000
    attention = 2 * 4 * 256 * 128
    assert NETWORK.flops_per_token == pytest.approx(6 * (4_000_000 + 0.15 * 400_000 + attention))
    assert replace(NETWORK, attended=0.5).flops_per_token == pytest.approx(NETWORK.flops_per_token - 3 * attention)


def test_bytes_of_collectives_by_hand():
    assert model.payload(NETWORK, "ddp") == {"all_reduce": 4 * 4_500_000}
    assert model.payload(NETWORK, "fsdp") == {
        "all_gather": 4 * (2 * 4_000_000 + 500_000), "reduce_scatter": 4 * 4_500_000
    }  # fmt: skip
    assert model.payload(NETWORK, "fsdp", 3) == {
        "all_gather": 3 * 4 * (2 * 4_000_000 + 500_000), "reduce_scatter": 4 * 4_500_000
    }  # fmt: skip
    assert model.payload(NETWORK, "ddp", 3) == model.payload(NETWORK, "ddp")
    assert model.sent("all_reduce", 100, 4) == 150 and model.sent("all_gather", 100, 4) == 75


@given(devices, kinds)
def test_one_device_sends_nothing_and_many_send_less_than_twice_the_payload(count, kind):
    step = model.step(NETWORK, MACHINES, kind, count, 1e6)
    total = sum(model.payload(NETWORK, kind).values())
    assert (step.sent == 0) == (count == 1) and step.sent < 2 * total
    assert 0 <= step.exposed <= step.communication and step.seconds >= step.compute


@given(devices)
def test_sharding_saves_memory_and_never_sends_less_than_replicas(count):
    whole, shared = (model.step(NETWORK, MACHINES, kind, count, 1e6) for kind in ("ddp", "fsdp"))
    assert whole.state == 16 * NETWORK.parameters and shared.state == pytest.approx(whole.state / count)
    assert shared.sent >= 0.99 * whole.sent and shared.checkpoint <= whole.checkpoint


def test_hsdp_shards_inside_nodes_and_reduces_between_them():
    one, flat, hybrid = (
        model.step(NETWORK, MACHINES, kind, count, 1e6) for kind, count in (("hsdp", 8), ("fsdp", 64), ("hsdp", 64))
    )
    assert one == model.step(NETWORK, MACHINES, "fsdp", 8, 1e6), "on one node it is FSDP"
    inside = (4 * (2 * 4_000_000 + 500_000) + 4 * 4_500_000) * 7 / 8
    between = 2 * 4 * 4_500_000 / 8 * 7 / 8
    assert hybrid.sent == pytest.approx(inside + between) and hybrid.leaving == pytest.approx(8 * between)
    assert flat.leaving == flat.sent > hybrid.leaving and one.leaving == 0
    assert hybrid.state == one.state == 2 * NETWORK.parameters == 8 * flat.state


def test_gloo_sends_a_reduce_scatter_twice_and_fsdp_waits_for_it():
    gloo = replace(MACHINES, gloo=True)
    gather, scatter = model.exchanges(NETWORK, gloo, "fsdp", 4)
    assert scatter.sent == pytest.approx(2 * 4 * 4_500_000 * 3 / 4)
    step = model.step(NETWORK, gloo, "fsdp", 4, 1e6)
    assert step.exposed == step.communication == pytest.approx(gather.seconds + scatter.seconds)
    assert gloo.hops("all_reduce", 8) == pytest.approx(2 * 7 * 1e-6), "a ring, not a tree"


def test_what_is_exchanged_first_or_last_is_hidden_behind_nothing():
    endless = 1e12
    for kind in ("ddp", "fsdp", "hsdp"):
        step = model.step(NETWORK, MACHINES, kind, 64, endless)
        assert 0 < step.exposed < step.communication
    large = replace(NETWORK, layer_parameters=100_000_000)
    (reduction,) = model.exchanges(large, MACHINES, "ddp", 64)
    assert reduction.bare == 25 * 2**20
    (reduction,) = model.exchanges(replace(large, embedding_parameters=10**8), MACHINES, "ddp", 64)
    assert reduction.bare == 4 * 10**8


def test_hops_by_hand():
    assert MACHINES.hops("all_reduce", 8) == pytest.approx(2 * 3 * 1e-6)
    assert MACHINES.hops("all_reduce", 64) == pytest.approx(2 * (3 * 1e-6 + 3 * 1e-5))
    assert MACHINES.hops("all_gather", 8) == pytest.approx(7e-6)
    assert MACHINES.hops("all_gather", 64) == pytest.approx(55e-6 + 8e-5)
    assert MACHINES.hops("all_gather", 1) == MACHINES.hops("all_reduce", 1) == 0


def test_a_batch_that_does_not_fit_is_split_into_passes():
    kept = 34 * 256 * 4
    small = replace(MACHINES, memory=16 * NETWORK.parameters + 1000 * kept)
    assert [model.passes_of(NETWORK, small, "ddp", 2, tokens) for tokens in (2000, 2002, 4000, 20_000)] == [
        1,
        2,
        2,
        10,
    ]
    # With several passes the accumulated gradients are whole on every device, sharded or not.
    once, more = (model.state(NETWORK, "fsdp", 2, passes) for passes in (1, 2))
    assert (once, more) == (8 * NETWORK.parameters, 10 * NETWORK.parameters)
    whole = model.step(NETWORK, small, "ddp", 64, 1e6)
    # All but the first MiB of gradients is in the last bucket, which is complete at the end of the backward pass.
    last = 2 * (4 * NETWORK.parameters - 2**20) * 63 / 64 / MACHINES.ring_speed(64)
    hidden = max(0, whole.communication - whole.compute * 2 / 3 / whole.passes)
    assert whole.passes > 1 and whole.exposed == pytest.approx(max(hidden, last))
    with pytest.raises(ValueError, match="does not fit"):
        model.step(NETWORK, replace(MACHINES, memory=1e6), "ddp", 2, 1e6)


def test_the_network_becomes_the_bottleneck_with_more_devices():
    found = [model.step(NETWORK, MACHINES, "ddp", count, 2e5) for count in (8, 64, 1024)]
    assert [step.compute for step in found] == pytest.approx(
        [found[0].compute, found[0].compute / 8, found[0].compute / 128]
    )
    assert found[0].bottleneck == "computing" and found[-1].bottleneck == "network"


def test_the_page_contains_the_tables():
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert model.tables() in page, "python benchmarks/scaling_model.py prints the tables of docs/scaling.md"
