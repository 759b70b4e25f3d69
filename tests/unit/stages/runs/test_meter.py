"""The price tag survives a kill and counts all attempts."""

from __future__ import annotations

import json
import time

import pytest

from headstart.evaluation.cost import CostConfig
from headstart.stages.runs import meter as metering
from headstart.stages.runs.meter import RecordedMeter


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


def test_it_is_written_now_and_then_without_being_asked(tmp_path, monkeypatch):
    path = tmp_path / "cost.json"
    with RecordedMeter(path, CostConfig(), energy=False) as meter:
        meter.log(1, {})
        assert not path.exists(), "not at every step"
        monkeypatch.setattr(metering, "_INTERVAL_SECONDS", 0.0)
        meter.log(2, {})
        assert json.loads(path.read_text())["seconds"] > 0
        assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seconds": 3, "of a later version": 1}'])
def test_a_torn_or_newer_record_stops_nothing(tmp_path, content):
    path = tmp_path / "cost.json"
    path.write_text(content)
    assert attempt(path, 0.0).tag().seconds >= (3 if "seconds" in content else 0)
