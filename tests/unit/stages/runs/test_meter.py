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
