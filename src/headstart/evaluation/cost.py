"""The price tag of a run: forecast before it, measured during it, in the same units.

with Meter(config=recipe.cost) as meter:
    ...
    meter.tokens += tokens
    meter.flops += flops
print(meter.tag().sentence())
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from types import TracebackType
from typing import Any, Self

from pydantic import Field, field_validator

from headstart.core.config import Section
from headstart.core.errors import HeadstartError
from headstart.evaluation import energy as energy_module
from headstart.evaluation.energy import WORLD, EnergyMeter, EnergySample
from headstart.evaluation.memory import PeakMemory


class CostConfig(Section):
    """What the price tag assumes about the machine and its location; a recipe's `cost` section."""

    price_per_hour: float = Field(
        default=0.10, ge=0, description="Price of the machine per hour; 0.10 USD rents 2 to 4 CPU cores."
    )
    price_per_device_hour: float | None = Field(
        default=None, ge=0, description="Price of one device (GPU) per hour, instead of price_per_hour; one a process."
    )
    currency: str = Field(default="USD", min_length=1, description="Currency of the price.")
    country: str = Field(
        default=WORLD,
        description="Country whose grid supplies the power: an ISO code such as DEU, or WORLD for the mean.",
    )

    def hourly_price(self, machines: int = 1, devices: int = 1) -> float:
        """Return the price of an hour on some machines, or on some devices if those have a price."""
        per_device = self.price_per_device_hour
        return self.price_per_hour * machines if per_device is None else per_device * devices

    @field_validator("country")
    @classmethod
    def _upper(cls, value: str) -> str:
        return value.upper()


@dataclass(frozen=True)
class PriceTag:
    """The cost of a run. `None` means unknown (a forecast's memory, energy without codecarbon), never zero."""

    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    peak_memory_mb: float | None = None
    kwh: float | None = None
    co2e_kg: float | None = None
    money: float = 0.0
    currency: str = "USD"
    assumptions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PriceTag:
        """Read what `to_dict` returned; unknown keys of a later version are ignored."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})

    def __add__(self, other: PriceTag) -> PriceTag:
        """Add the costs of two pieces of work: everything is summed except memory, of which the higher peak counts.

        A value that is unknown on one side is unknown in the sum. Assumptions that differ are listed side by side.
        """
        if self.currency != other.currency:
            raise HeadstartError(
                f"one price is in {self.currency}, the other in {other.currency}",
                do="Set the same cost.currency in both recipes",
            )
        peaks = [peak for peak in (self.peak_memory_mb, other.peak_memory_mb) if peak is not None]
        return PriceTag(
            self.tokens + other.tokens,
            self.flops + other.flops,
            self.seconds + other.seconds,
            max(peaks, default=None),
            _sum(self.kwh, other.kwh),
            _sum(self.co2e_kg, other.co2e_kg),
            self.money + other.money,
            self.currency,
            _merge(self.assumptions, other.assumptions),
        )

    def sentence(self) -> str:
        """Return the tag as one line of text."""
        parts = [f"{_count(self.tokens)} tokens", f"{self.flops:.2g} FLOPs", duration(self.seconds)]
        if self.peak_memory_mb is not None:
            parts.append(f"{self.peak_memory_mb:,.0f} MB at most")
        parts.append("energy unknown" if self.kwh is None else f"{self.kwh:.2g} kWh")
        if self.co2e_kg is not None:
            parts.append(f"{self.co2e_kg * 1000:.2g} g CO₂e" if self.co2e_kg < 1 else f"{self.co2e_kg:.3g} kg CO₂e")
        parts.append(f"{self.money:.2f} {self.currency}" if self.money >= 0.1 else f"{self.money:.2g} {self.currency}")
        return ", ".join(parts)


@dataclass(frozen=True)
class ProcessCost:
    """What one process has used since its meter started; of plain JSON types, so that ranks can send it."""

    seconds: float
    peak_memory_mb: float
    kwh: float | None
    shared_kwh: float
    """The part of `kwh` that belongs to the whole machine."""
    source: str
    """How the energy was measured."""
    machine: str


class Meter:
    """Context manager that measures the cost of a block; `tag()` returns it at any time.

    A resumed run passes the tag of its checkpoint as `previous`, and the new tag continues from there.
    `energy=False` skips the energy measurement, for work too short to matter. `others` are the costs of processes that
    share the work: memory and energy are summed, the clock is this process's.
    """

    others: Sequence[ProcessCost] = ()

    def __init__(self, previous: PriceTag | None = None, config: CostConfig | None = None, energy: bool = True) -> None:
        """Check the assumptions, so that a wrong country fails before the work and not after it."""
        self.previous, self.config = previous, config or CostConfig()
        self.tokens = 0
        self.flops = 0.0
        self._measures_energy = energy
        if energy and energy_module.installed():
            energy_module.carbon_intensity(self.config.country)
        self._energy: EnergyMeter | None = None
        self._memory: PeakMemory | None = None
        self._started = 0.0
        self._final: ProcessCost | None = None

    def __enter__(self) -> Self:
        """Start measuring."""
        self._started = time.perf_counter()
        self._memory = PeakMemory()
        self._energy = EnergyMeter() if self._measures_energy else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop measuring; the tag is final from here on, also after an exception."""
        seconds = time.perf_counter() - self._started
        if self._energy:
            self._energy.stop()
        if self._memory:
            self._memory.stop()
        self._final = self._measure(seconds)

    def tag(self) -> PriceTag:
        """Return the price tag until now (or until the end of the block), including the previous tag."""
        processes = [self.process_cost(), *self.others]
        kwh = _energy(processes)
        co2e, assumptions = _emissions(kwh, self.config)
        assumptions["energy"] = " | ".join(dict.fromkeys(process.source for process in processes))
        machines = len({process.machine for process in processes})
        if self.others:
            assumptions["processes"] = f"{len(processes)} on {machines} machine{'s' * (machines > 1)}"
        seconds = processes[0].seconds
        measured = PriceTag(
            self.tokens,
            self.flops,
            seconds,
            sum(process.peak_memory_mb for process in processes),
            kwh,
            co2e,
            seconds / 3600 * self.config.hourly_price(machines, len(processes)),
            self.config.currency,
            assumptions,
        )
        return self.previous + measured if self.previous else measured

    def process_cost(self) -> ProcessCost:
        """Return what this process has used until now, or until the end of the block."""
        return self._final or self._measure(time.perf_counter() - self._started)

    def _measure(self, seconds: float) -> ProcessCost:
        if self._memory is None:
            raise RuntimeError("a Meter is read inside or after its `with` block")
        sample = self._energy.read() if self._energy else EnergySample(None, "not measured")
        memory = self._memory.megabytes()
        return ProcessCost(seconds, memory, sample.kwh, sample.shared_kwh, sample.source, socket.gethostname())


def forecast_tag(
    flops: float,
    flops_per_second: float,
    config: CostConfig,
    watts: float | None = None,
    tokens: int = 0,
    peak_memory_mb: float | None = None,
) -> PriceTag:
    """Return the price tag of future work, from its FLOPs and this machine's measured speed.

    Without `watts`, processor and memory are assumed at full load by codecarbon's tables; without codecarbon the energy
    is unknown.
    """
    if not flops_per_second > 0:
        raise HeadstartError(f"the speed is {flops_per_second} FLOP/s", allowed="A forecast needs a positive one")
    seconds = flops / flops_per_second
    source = "stated by the caller"
    if watts is None and energy_module.installed():
        watts, source = energy_module.full_load_watts()
    kwh = None if watts is None else watts * seconds / 3.6e6
    co2e, assumptions = _emissions(kwh, config)
    assumptions["energy"] = (
        "unknown: codecarbon is not installed" if watts is None else f"{watts:g} W throughout; {source}"
    )
    assumptions["speed"] = f"{flops_per_second:.3g} FLOP/s"
    money = seconds / 3600 * config.hourly_price()
    return PriceTag(tokens, flops, seconds, peak_memory_mb, kwh, co2e, money, config.currency, assumptions)


def _energy(processes: Sequence[ProcessCost]) -> float | None:
    """Return the energy of all processes; what was measured for a whole machine counts once per machine."""
    own = 0.0
    shared: dict[str, float] = {}
    for process in processes:
        if process.kwh is None:
            return None
        own += process.kwh - process.shared_kwh
        shared[process.machine] = max(shared.get(process.machine, 0.0), process.shared_kwh)
    return own + sum(shared.values())


def _emissions(kwh: float | None, config: CostConfig) -> tuple[float | None, dict[str, str]]:
    per_device = config.price_per_device_hour
    price = f"{config.hourly_price():g} {config.currency} per hour" + ("" if per_device is None else " and device")
    assumptions = {"price": price}
    if kwh is None or not energy_module.installed():
        return None, assumptions
    grams = energy_module.carbon_intensity(config.country)
    assumptions["grid"] = f"{config.country}, {grams:g} g CO₂e per kWh, by codecarbon"
    return kwh * grams / 1000, assumptions


def _sum(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def _merge(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
    merged = dict(left)
    for key, text in right.items():
        known = merged.get(key, "").split(" | ") if key in merged else []
        merged[key] = " | ".join(dict.fromkeys([*known, *text.split(" | ")]))
    return merged


def _count(number: float) -> str:
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Return a time in words: seconds, minutes, or hours and minutes."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
