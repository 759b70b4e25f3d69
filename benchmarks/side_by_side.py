"""Shared by the benchmarks: two systems alternate within one run, so that other work on the machine affects both.

Every script in this folder prints lines of JSON: name, ours, theirs, ratio, goal, unit and further measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headstart.stages.runs import environment
from headstart.training import precision

DATA = Path(os.environ.get("HEADSTART_DATA", "data"))


def arguments(description: str, repetitions: int = 5) -> argparse.Namespace:
    """Parse the options of all scripts, in a process with the allocator settings of a training run."""
    environment.restart()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repetitions", type=int, default=repetitions, help="repetitions; the median counts")
    parser.add_argument("--quick", action="store_true", help="do as little work as possible, as a test")
    return parser.parse_args()


def number_format() -> str:
    """Return bf16 if this machine supports it in hardware, otherwise fp32; both systems use this format."""
    return precision.resolve("auto", torch.device("cpu"))


def in_turns(repetitions: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Call the systems alternately, `repetitions` times, and return the measurement of each call."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, side in sides.items():
            found[name].append(side())
    return found


def report(
    name: str, ours: list[float], theirs: list[float], goal: float, unit: str, *, less_is_better: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    """Print the line of JSON: the medians of both systems and the median ratio, where higher is better.

    Ratios are computed per repetition. If `theirs` is a single number, such as a limit, each repetition is compared
    with it.
    """
    one, other = statistics.median(ours), statistics.median(theirs)
    limits = theirs * len(ours) if len(theirs) == 1 else theirs
    ratios = [b / a if less_is_better else a / b for a, b in zip(ours, limits, strict=True)]
    ratio = statistics.median(ratios)
    spread = {
        "least": round(min(ratios), 3), "most": round(max(ratios), 3),
        "ours_all": [round(v, 4) for v in ours], "theirs_all": [round(v, 4) for v in theirs],
    }  # fmt: skip
    print(
        json.dumps(
            {"name": name, "ours": round(one, 4), "theirs": round(other, 4), "ratio": round(ratio, 3), "goal": goal,
             "unit": unit, **more, **spread}
        )
    )  # fmt: skip


def agree(name: str, found: float, predicted: float, goal: float, unit: str, **more: Any) -> None:
    """Print the line of JSON for a count compared with a model: the ratio is the smaller over the larger."""
    ratio = 1.0 if found == predicted else min(found, predicted) / max(found, predicted)
    line = {"name": name, "ours": found, "theirs": predicted, "ratio": round(ratio, 4), "goal": goal, "unit": unit}
    print(json.dumps(line | more), flush=True)
