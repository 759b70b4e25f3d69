"""A budget in time, tokens, steps, epochs or FLOPs, and the fraction of it that a run has used."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Unit = Literal["seconds", "tokens", "steps", "epochs", "flops"]

_UNITS: dict[str, tuple[Unit, float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("seconds", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600.0)),
    **dict.fromkeys(("d", "day", "days"), ("seconds", 86400.0)),
    **dict.fromkeys(("token", "tokens"), ("tokens", 1.0)),
    **dict.fromkeys(("step", "steps"), ("steps", 1.0)),
    **dict.fromkeys(("epoch", "epochs"), ("epochs", 1.0)),
    **dict.fromkeys(("flop", "flops"), ("flops", 1.0)),
}
_MULTIPLES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
_FORM = re.compile(rf"^\s*({_NUMBER})\s*([A-Za-z]+)(?:\s+([A-Za-z]+))?\s*$")


@dataclass(frozen=True)
class Usage:
    """What a run has used so far, in every unit of a budget."""

    seconds: float
    tokens: int
    steps: int
    flops: float


@dataclass(frozen=True)
class Budget:
    """An amount of one unit."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse "30 min", "10M tokens", "2000 steps", "3 epochs" or "1e15 flops"."""
        match = _FORM.match(text)
        multiple, word = _split_unit(match[2], match[3]) if match else ("", "")
        if not match or multiple not in _MULTIPLES or word.lower() not in _UNITS:
            raise ValueError(
                "it must be an amount and a unit: 30 min, 2 h, 10M tokens, 2000 steps, 3 epochs, 1e15 flops."
            )
        unit, factor = _UNITS[word.lower()]
        amount = float(match[1].replace(",", "").replace("_", "")) * _MULTIPLES[multiple] * factor
        if amount <= 0 or not math.isfinite(amount):
            raise ValueError("it must be greater than 0.")
        return cls(amount, unit)

    def in_steps(self, batch_size: int, samples_per_epoch: int) -> Budget:
        """Convert epochs to steps, given the size of the data; return budgets in other units unchanged."""
        if self.unit != "epochs":
            return self
        return Budget(max(1, math.ceil(self.amount * samples_per_epoch / batch_size - 1e-9)), "steps")

    def fraction_done(self, usage: Usage) -> float:
        """Return the used fraction of the budget: 0 at the start, 1 or more at the end."""
        if self.unit == "epochs":
            raise ValueError("convert epochs to steps first (`in_steps`)")
        return float(getattr(usage, self.unit)) / self.amount


def _split_unit(first: str, second: str | None) -> tuple[str, str]:
    """Split "M tokens", "Mtokens" or "tokens" into multiple and unit; M alone is ambiguous (minutes or millions)."""
    if second is not None:
        return first, second
    return ("", first) if first.lower() in _UNITS and first != "M" else (first[0], first[1:])
