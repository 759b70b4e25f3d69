"""The price tag survives a kill and counts all attempts."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headstart.core import artifact
from headstart.evaluation.cost import CostConfig
from headstart.evaluation.energy import EnergyMeter, EnergySample
from headstart.evaluation.memory import PeakMemory
from headstart.stages.runs import meter as metering
from headstart.stages.runs.meter import RecordedMeter
from headstart.training.checkpoint import Progress
from headstart.training.world import World


def attempt(path, seconds: float, config=None) -> RecordedMeter:
    with RecordedMeter(path, config or CostConfig(price_per_hour=3600), energy=False) as meter:
        time.sleep(seconds)
        meter.close()
    return meter


def test_each_attempt_adds_to_the_one_before(tmp_path):
    path = tmp_path / "cost.json"
    attempt(path, 0.05)
    first = json.loads(path.read_text())["seconds"]
    second = attempt(path, 0.05).tag()
    assert 0.05 <= first < 5
    assert first + 0.05 <= json.loads(path.read_text())["seconds"] <= second.seconds
    assert second.money == pytest.approx(second.seconds, rel=0.01)


def test_it_is_saved_at_intervals(tmp_path, monkeypatch):
    path = tmp_path / "cost.json"
    with RecordedMeter(path, CostConfig(), energy=False) as meter:
        meter.write_if_due()
        assert not path.exists(), "not at every step"
        monkeypatch.setattr(metering, "_INTERVAL_SECONDS", 0.0)
        meter.write_if_due()
        assert json.loads(path.read_text())["seconds"] > 0
        assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seconds": 3, "of a later version": 1}'])
def test_a_damaged_or_newer_record_is_no_error(tmp_path, content):
    path = tmp_path / "cost.json"
    path.write_text(content)
    assert attempt(path, 0.0).tag().seconds >= (3 if "seconds" in content else 0)


def test_the_record_of_a_finished_run_is_the_cost_in_its_manifest(way):
    """Tokens and FLOPs too, which the loop counts."""
    manifest = artifact.read_manifest(way / "pretrained")
    record = json.loads((way / "pretrained" / "cost.json").read_text(encoding="utf-8"))
    assert record == manifest["cost"] and record["tokens"] == manifest["progress"]["tokens"] > 0


def loop_at(tokens: int, seconds: float) -> Any:
    progress = Progress(tokens=tokens, flops=10.0 * tokens, seconds=seconds)
    return SimpleNamespace(progress=progress, train_step=SimpleNamespace(peak_flops=None))


def test_tokens_are_those_of_the_progress_in_every_attempt(tmp_path):
    """A resumed run repeats what came after its checkpoint; its tokens do not count twice, its seconds do."""
    path = tmp_path / "cost.json"
    for tokens, resumed_at in ((700, 0), (1000, 400)):
        with RecordedMeter(path, CostConfig(), energy=False) as meter:
            meter.on_train_begin(loop_at(resumed_at, 0.0))
            meter.on_log(loop_at(tokens, 1.0), {})
        record = json.loads(path.read_text())
        assert (record["tokens"], record["flops"]) == (tokens, 10.0 * tokens)


class Ranks(World):
    """Rank 0 of two processes; the other one reports what `other` holds."""

    other: ClassVar[dict[str, Any]] = {}

    def all_gather(self, value: Any) -> list[Any]:
        return [value, {**value, **self.other}]


@pytest.mark.parametrize(
    ("other", "kwh"),
    [
        pytest.param({"kwh": 0.4, "shared_kwh": 0.0}, 0.7, id="each process by itself"),
        pytest.param({"kwh": 0.4, "shared_kwh": 0.3}, 0.6, id="a counter of the machine"),
        pytest.param({"kwh": 0.4, "shared_kwh": 0.3, "machine": "another"}, 0.7, id="two machines"),
        pytest.param({"kwh": None}, None, id="unknown"),
    ],
)
@pytest.mark.parametrize("price", [None, 3600])
def test_energy_memory_and_money_are_those_of_all_processes(tmp_path, monkeypatch, other, kwh, price):
    own_shared = other.get("shared_kwh", 0.0) / 3
    monkeypatch.setattr(EnergyMeter, "read", lambda self: EnergySample(0.3, "a test", own_shared))
    monkeypatch.setattr(EnergyMeter, "stop", lambda self: EnergySample(0.3, "a test", own_shared))
    # The real peak may grow between two readings.
    monkeypatch.setattr(PeakMemory, "megabytes", lambda self: 700.0)
    monkeypatch.setattr(Ranks, "other", {"peak_memory_mb": 5000.0, **other})
    path = tmp_path / "cost.json"
    prices = CostConfig(price_per_hour=3600, price_per_device_hour=price)
    with RecordedMeter(path, prices, world=Ranks(0, 2, 2)) as meter:
        meter.on_train_begin(loop_at(0, 0.0))
        meter.on_train_end(loop_at(1000, 2.0))
    tag = meter.tag()
    assert tag.kwh == (None if kwh is None else pytest.approx(kwh))
    assert tag.peak_memory_mb == pytest.approx(5000 + 700)
    assert json.loads(path.read_text()) == tag.to_dict()
    # A price per device counts processes, a price per hour machines.
    count = 2 if price is not None or "machine" in other else 1
    assert tag.money == pytest.approx(count * tag.seconds)


def test_only_rank_0_writes(tmp_path):
    with RecordedMeter(tmp_path / "cost.json", CostConfig(), energy=False, world=Ranks(1, 2, 2)) as meter:
        meter.on_save_begin(loop_at(10, 1.0))
        meter.on_train_end(loop_at(10, 1.0))
    assert not list(tmp_path.iterdir())
