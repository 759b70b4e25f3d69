"""The cost of a step on many devices, against counts by hand and what must hold at any size."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.evaluation import cluster
from headstart.evaluation.cluster import Cluster, Network

NETWORK = Network(4, 1_000_000, 500_000, width=256, context=128, head_parameters=400_000, predicted=0.15)
MACHINES = Cluster(
    peak_flops=1e14, efficiency=0.5, devices_per_node=8, node_bytes_per_second=1e11, network_bytes_per_second=1e10,
    node_latency=1e-6, network_latency=1e-5, disk_bytes_per_second=1e9, hashed_bytes_per_second=1e9, memory=1e11,
)  # fmt: skip
devices = st.integers(1, 2048)
ways = st.sampled_from(["ddp", "fsdp"])


def test_parameters_and_flops_by_hand():
    assert NETWORK.parameters == 4_500_000
    attention = 2 * 4 * 256 * 128
    assert NETWORK.flops_per_token == pytest.approx(6 * (4_000_000 + 0.15 * 400_000 + attention))
    assert replace(NETWORK, attended=0.5).flops_per_token == pytest.approx(NETWORK.flops_per_token - 3 * attention)


def test_bytes_of_collectives_by_hand():
    assert cluster.payload(NETWORK, "ddp") == {"all_reduce": 4 * 4_500_000}
    assert cluster.payload(NETWORK, "fsdp") == {
        "all_gather": 4 * (2 * 4_000_000 + 500_000), "reduce_scatter": 4 * 4_500_000
    }  # fmt: skip
    assert cluster.payload(NETWORK, "fsdp", 3) == {
        "all_gather": 3 * 4 * (2 * 4_000_000 + 500_000), "reduce_scatter": 4 * 4_500_000
    }  # fmt: skip
    assert cluster.payload(NETWORK, "ddp", 3) == cluster.payload(NETWORK, "ddp")
    assert cluster.sent("all_reduce", 100, 4) == 150 and cluster.sent("all_gather", 100, 4) == 75


@given(devices, ways)
def test_one_device_sends_nothing_and_many_send_less_than_twice_the_payload(count, way):
    step = cluster.step(NETWORK, MACHINES, way, count, 1e6)
    total = sum(cluster.payload(NETWORK, way).values())
    assert (step.sent == 0) == (count == 1) and step.sent < 2 * total
    assert 0 <= step.exposed <= step.communication and step.seconds >= step.compute


@given(devices)
def test_sharding_spares_memory_and_never_sends_less_than_replicas(count):
    whole, shared = (cluster.step(NETWORK, MACHINES, way, count, 1e6) for way in ("ddp", "fsdp"))
    assert whole.state == 16 * NETWORK.parameters and shared.state == pytest.approx(whole.state / count)
    assert shared.sent >= 0.99 * whole.sent and shared.checkpoint <= whole.checkpoint


def test_hops_by_hand():
    assert MACHINES.hops("all_reduce", 8) == pytest.approx(2 * 3 * 1e-6)
    assert MACHINES.hops("all_reduce", 64) == pytest.approx(2 * (3 * 1e-6 + 3 * 1e-5))
    assert MACHINES.hops("all_gather", 8) == pytest.approx(7e-6)
    assert MACHINES.hops("all_gather", 64) == pytest.approx(55e-6 + 8e-5)
    assert MACHINES.hops("all_gather", 1) == MACHINES.hops("all_reduce", 1) == 0


def test_what_does_not_fit_is_read_in_passes():
    kept = 34 * 256 * 4
    small = replace(MACHINES, memory=16 * NETWORK.parameters + 1000 * kept)
    assert [cluster.passes_of(NETWORK, small, "ddp", 2, tokens) for tokens in (2000, 2002, 4000, 20_000)] == [
        1,
        2,
        2,
        10,
    ]
    # Sharded, a device has room for its gradients' other half only while there is one pass.
    once, more = (cluster.state(NETWORK, "fsdp", 2, passes) for passes in (1, 2))
    assert (once, more) == (8 * NETWORK.parameters, 10 * NETWORK.parameters)
    whole = cluster.step(NETWORK, small, "ddp", 64, 1e6)
    assert whole.passes > 1 and whole.exposed == pytest.approx(
        max(0, whole.communication - whole.compute * 2 / 3 / whole.passes)
    )
    with pytest.raises(ValueError, match="does not fit"):
        cluster.step(NETWORK, replace(MACHINES, memory=1e6), "ddp", 2, 1e6)


def test_the_network_takes_over_as_devices_share_a_batch():
    found = [cluster.step(NETWORK, MACHINES, "ddp", count, 1e6) for count in (8, 64, 1024)]
    assert [step.compute for step in found] == pytest.approx(
        [found[0].compute, found[0].compute / 8, found[0].compute / 128]
    )
    assert found[0].bottleneck == "computing" and found[-1].bottleneck == "network"


def test_the_page_holds_what_its_script_prints():
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "scaling.md").read_text(encoding="utf-8")
    printed = runpy.run_path(str(docs / "scaling_model.py"))["tables"]()
    assert printed in page, "python docs/scaling_model.py prints the tables of docs/scaling.md"
