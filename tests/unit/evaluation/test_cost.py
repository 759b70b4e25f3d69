"""Cost: sums of tags, a meter that prints and writes nothing, and forecasts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from headstart.core.errors import HeadstartError, RecipeError
from headstart.evaluation import energy
from headstart.evaluation.cost import CostConfig, Meter, PriceTag, forecast_tag

TAG = PriceTag(1_000_000, 2e12, 4000.0, 500.0, 0.02, 0.01, 0.11, "USD", {"grid": "WORLD"})


def burn(seconds: float) -> None:
    """Keep one core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_tags_add_up_and_memory_takes_the_higher_peak() -> None:
    other = PriceTag(5, 1e3, 10.0, 900.0, 0.01, 0.005, 0.01, "USD", {"grid": "DEU", "price": "0.1"})
    total = TAG + other
    assert (total.tokens, total.flops, total.seconds) == (1_000_005, 2e12 + 1e3, 4010.0)
    assert total.peak_memory_mb == 900.0
    assert (total.kwh, total.co2e_kg, total.money) == (pytest.approx(0.03), pytest.approx(0.015), pytest.approx(0.12))
    assert total.assumptions == {"grid": "WORLD | DEU", "price": "0.1"}
    assert (total + other).assumptions == total.assumptions


def test_the_unknown_stays_unknown_and_currencies_do_not_mix() -> None:
    assert (TAG + PriceTag(kwh=None)).kwh is None
    with pytest.raises(HeadstartError, match=r"USD.*EUR"):
        TAG + PriceTag(currency="EUR")


def test_a_tag_survives_json() -> None:
    assert PriceTag.from_dict(json.loads(json.dumps(TAG.to_dict()))) == TAG
    assert PriceTag.from_dict({**TAG.to_dict(), "from_the_future": 1}) == TAG


def test_the_sentence_is_one_readable_line() -> None:
    assert TAG.sentence() == "1 M tokens, 2e+12 FLOPs, 1 h 07 min, 500 MB at most, 0.02 kWh, 10 g CO₂e, 0.11 USD"
    assert "energy unknown" in PriceTag(tokens=7).sentence()


def test_config_refuses_bad_values_and_an_unknown_country_fails_before_the_work() -> None:
    assert CostConfig(country="deu").country == "DEU"
    with pytest.raises(ValidationError):
        CostConfig(price_per_hour=-1)
    with pytest.raises(RecipeError, match=r"cost\.country is 'GERMANY'.*three-letter"):
        Meter(config=CostConfig(country="Germany"))


def test_the_meter_measures_and_resumes() -> None:
    config = CostConfig(price_per_hour=36.0, country="FRA")
    with Meter(config=config):
        pass  # codecarbon's first inspection of the processor takes longer than this test should
    with Meter(config=config) as meter:
        meter.tokens += 100
        meter.flops += 1e6
        burn(1.5)
        midway = meter.tag()
        burn(0.5)
    tag = meter.tag()
    assert 1.5 <= midway.seconds < tag.seconds
    assert (tag.tokens, tag.flops) == (100, 1e6)
    assert tag.money == pytest.approx(tag.seconds * 0.01)
    assert midway.kwh is not None
    assert tag.kwh is not None
    assert 0 < midway.kwh < tag.kwh
    assert 0.5 < tag.kwh * 3.6e6 / tag.seconds < 2000  # watts
    assert tag.co2e_kg == pytest.approx(tag.kwh * energy.carbon_intensity("FRA") / 1000)
    assert "FRA" in tag.assumptions["grid"]
    assert "codecarbon" in tag.assumptions["energy"]
    assert meter.tag() == tag
    with Meter(previous=tag, config=config, energy=True) as again:
        again.tokens += 11
    assert again.tag().tokens == 111
    assert again.tag().seconds > tag.seconds
    assert again.tag().kwh > tag.kwh


def test_energy_can_be_left_out_and_an_exception_passes() -> None:
    with pytest.raises(ZeroDivisionError), Meter(energy=False) as meter:
        1 / 0  # noqa: B018
    tag = meter.tag()
    assert (tag.kwh, tag.co2e_kg, tag.assumptions["energy"]) == (None, None, "not measured")
    with pytest.raises(RuntimeError, match="with"):
        Meter(energy=False).tag()


def test_peak_memory_includes_a_spike_and_a_child_but_not_the_past() -> None:
    """In a fresh process: a larger peak before the test would hide a spike of this size."""
    script = """
import subprocess, sys, time
import numpy as np
from headstart.evaluation.cost import Meter
with Meter(energy=False) as before:
    np.ones(25_000_000).sum()  # 200 MB
with Meter(energy=False) as after:
    time.sleep(0.1)
child = "import time; b = b'x' * 150_000_000; time.sleep(1.5)"
with Meter(energy=False) as parent:
    subprocess.run([sys.executable, "-c", child], check=True)
print(*(meter.tag().peak_memory_mb for meter in (before, after, parent)))
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    before, after, parent = map(float, output.split())
    assert before - after > 150
    assert parent - after > 120


def test_codecarbon_prints_nothing_writes_nothing_and_stays_offline(tmp_path: Path) -> None:
    """In a fresh process, with a user's configuration that asks for all three."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / ".codecarbon.config").write_text(
            f"[codecarbon]\nemissions_endpoint={endpoint}\napi_endpoint={endpoint}\nsave_to_file=true\nsave_to_api=true\n"
            "output_methods=csv,logger\noutput_dir=/nonexistent\nlog_level=debug\nco2_signal_api_token=token\n"
        )
        script = (
            "from headstart.evaluation.cost import Meter\nimport time\n"
            "with Meter() as m: time.sleep(1.5)\nassert m.tag().kwh > 0"
        )
        guard = (
            "import os, socket\n"
            "def refuse(*a, **k): os.write(2, b'network!'); raise OSError('refused')\n"
            "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        )
        environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", guard + script],
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [".codecarbon.config"]


def test_the_forecast_follows_speed_power_and_price() -> None:
    tag = forecast_tag(3.6e15, 1e12, CostConfig(price_per_hour=2.0, country="WORLD"), watts=100.0, tokens=9)
    assert (tag.seconds, tag.money, tag.kwh, tag.tokens) == (3600.0, pytest.approx(2.0), pytest.approx(0.1), 9)
    assert tag.co2e_kg == pytest.approx(0.0475)
    assert tag.peak_memory_mb is None
    assert "100 W" in tag.assumptions["energy"]
    estimated = forecast_tag(3.6e15, 1e12, CostConfig())
    assert estimated.kwh == pytest.approx(energy.full_load_watts()[0] / 1000)
    with pytest.raises(HeadstartError, match="positive"):
        forecast_tag(1e9, 0.0, CostConfig())


def test_a_machine_without_codecarbon_has_a_tag_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "installed", lambda: False)
    with Meter() as meter:
        pass
    assert meter.tag().kwh is None
    assert "pip install" in meter.tag().assumptions["energy"]
    assert forecast_tag(1e9, 1e9, CostConfig()).kwh is None
