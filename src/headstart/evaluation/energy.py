"""Measure the energy of a run with codecarbon, silent and offline; look up a country's carbon intensity."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headstart.core import registry
from headstart.core.errors import RecipeError

WORLD = "WORLD"
"""The country code for an unknown country: the world's average grid."""

_SAMPLE_SECONDS = 15.0
_SHORTEST_SAMPLE_SECONDS = 0.5
"""Below this codecarbon's measurement is noise, and the machine's full-load power is used instead."""
_UNKNOWN_PROCESSOR_WATTS = 85.0
"""What codecarbon assumes for an unknown processor."""
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergySample:
    """Energy since a meter's start, and the source of the number; None where codecarbon is missing."""

    kwh: float | None
    source: str
    shared_kwh: float = 0.0
    """The part that was measured or assumed for the whole machine, so that its processes must not be added up."""


def installed() -> bool:
    """Return whether codecarbon can be imported."""
    return importlib.util.find_spec("codecarbon") is not None


@lru_cache(maxsize=32)
def carbon_intensity(country: str) -> float:
    """Return grams of CO2e per kWh for a country's three-letter code, from codecarbon's table."""
    from codecarbon.input import DataSource

    source = DataSource()
    if country == WORLD:
        return float(source.get_carbon_intensity_per_source_data()["world_average"])
    table = source.get_global_energy_mix_data()
    if country not in table:
        raise RecipeError(
            f"cost.country is {country!r}{registry.suggest(country, table)}",
            allowed=f"It must be a three-letter ISO code such as DEU, IND or USA, or {WORLD} for the average grid",
        )
    return float(table[country]["carbon_intensity"])


@lru_cache(maxsize=1)
def full_load_watts() -> tuple[float, str]:
    """Return the estimated power of this machine's processors and memory under full load, and its source.

    It is the processor's thermal design power from codecarbon's table (4 W per thread where the model is unknown), plus
    codecarbon's estimate for memory. Accelerators are not included: add their power yourself.
    """
    from codecarbon.core.cpu import TDP
    from codecarbon.core.util import count_physical_cpus
    from codecarbon.external.ram import RAM

    _silence()
    processor = TDP()
    watts = float(processor.tdp or _UNKNOWN_PROCESSOR_WATTS) * count_physical_cpus()
    memory = float(RAM(tracking_mode="process").total_power().W)
    return watts + memory, f"{watts:g} W processor ({processor.model}) + {memory:g} W memory, by codecarbon"


class EnergyMeter:
    """Measures the energy of this process and its children from construction on.

    codecarbon takes 1.2 s to inspect the processor, so it starts in a thread; the seconds before its first sample count
    at the mean power of those after it. Endpoints, tokens and files in a user's codecarbon configuration are
    overridden: nothing is sent and nothing is written.
    """

    def __init__(self) -> None:
        """Start measuring; the first call imports codecarbon, and returns before codecarbon is ready."""
        self._began = time.perf_counter()
        self._ready = self._began
        self._tracker: Any = None
        self._error = "no reason given"
        self._final: EnergySample | None = None
        self._thread: threading.Thread | None = None
        if installed():
            # Not in the thread: two threads that import pandas at the same time may each see half of it.
            for module in ("codecarbon", "pandas"):
                importlib.import_module(module)
            self._thread = threading.Thread(target=self._start, name="energy meter", daemon=True)
            self._thread.start()

    def read(self) -> EnergySample:
        """Return the energy so far; after `stop`, the energy until then."""
        if self._final:
            return self._final
        if self._thread is None:
            return EnergySample(None, "not measured: codecarbon is not installed (pip install codecarbon)")
        self._thread.join()
        return self._sample(self._tracker.flush() if self._tracker else None)

    def stop(self) -> EnergySample:
        """End the measurement and return its result; a second call returns the same."""
        if self._final is None and self._thread is not None:
            self._thread.join()
            self._final = self._sample(self._tracker.stop() if self._tracker else None)
        return self._final or self.read()

    def _start(self) -> None:
        from codecarbon import OfflineEmissionsTracker

        _silence()
        try:
            tracker = OfflineEmissionsTracker(
                country_iso_code="USA",  # must be a country; without effect, since the intensity is forced
                # At 1 kg per kWh, the emissions that flush() and stop() return are the energy.
                force_carbon_intensity_g_co2e_kwh=1000.0,
                tracking_mode="process",
                measure_power_secs=_SAMPLE_SECONDS,
                log_level="critical",
                output_methods=[],
                output_handlers=[],
                output_dir=".",
                emissions_endpoint=None,
                cloud_provider=None,
                cloud_region=None,
                allow_multiple_runs=True,
            )
            tracker.start()
        except Exception as error:  # a failing meter must not end hours of training
            self._error = f"{type(error).__name__}: {error}"
            return
        self._ready = time.perf_counter()
        self._tracker = tracker

    def _sample(self, kwh: float | None) -> EnergySample:
        now = time.perf_counter()
        total, covered = now - self._began, now - self._ready
        if kwh is None or covered < _SHORTEST_SAMPLE_SECONDS:
            watts, how = full_load_watts()
            why = f"codecarbon did not start ({self._error})" if kwh is None else "the run was too short to measure"
            assumed = watts * total / _JOULES_PER_KWH
            return EnergySample(assumed, f"full load assumed, since {why}: {how}", assumed)
        measured = float(kwh) * total / covered
        return EnergySample(measured, self._source(), measured * self._shared_fraction())

    def _shared_fraction(self) -> float:
        """Return the fraction of the energy that counters of the whole machine measured: GPUs, and a CPU's own counter.

        codecarbon attributes memory, and a processor without a counter, to this process and its children.
        """
        cpu, gpu, ram = (self._energy_of(part) for part in ("cpu", "gpu", "ram"))
        modes = {getattr(item, "_mode", None) for item in getattr(self._tracker, "_hardware", [])} - {None}
        shared = gpu + (0.0 if modes <= {"cpu_load"} else cpu)
        return shared / total if (total := cpu + gpu + ram) > 0 else 0.0

    def _energy_of(self, part: str) -> float:
        return float(getattr(getattr(self._tracker, f"_total_{part}_energy", None), "kWh", 0.0))

    def _source(self) -> str:
        parts = []
        for item in getattr(self._tracker, "_hardware", []):
            mode = getattr(item, "_mode", None)
            if mode == "cpu_load":
                parts.append(f"processor by its load, {item._tdp:g} W at most (no power counter is readable)")
            elif mode is not None:
                parts.append(f"processor by {mode}")
            else:
                parts.append({"RAM": "memory by its size"}.get(type(item).__name__, type(item).__name__))
        return f"codecarbon, this process and its children: {', '.join(parts) or 'source unknown'}"


def _silence() -> None:
    """Silence codecarbon's logger, which warns on stderr about everything that it has to estimate."""
    import codecarbon.external.logger  # noqa: F401  (its import sets the level, so it has to come first)

    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
