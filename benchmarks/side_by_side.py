"""Two ways to do the same, measured in turns in one process, so that a busy machine is busy for both.

Every script of this folder ends with one line of JSON: name, ours, theirs, ratio, goal, unit and what else it measured.
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
    """Read the options that all scripts share, in a process that keeps memory as a training run does."""
    environment.restart()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repetitions", type=int, default=repetitions, help="turns of each side; the median counts")
    parser.add_argument("--quick", action="store_true", help="as little work as possible: does the script run?")
    return parser.parse_args()


def number_format() -> str:
    """Return bf16 where this machine computes it in hardware, else fp32: both sides get the format that suits it."""
    return precision.resolve("auto", torch.device("cpu"))


def in_turns(repetitions: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Call each side in turn, so often, and return what each call measured."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, side in sides.items():
            found[name].append(side())
    return found


def report(
    name: str, ours: list[float], theirs: list[float], goal: float, unit: str, *, less_is_better: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    """Print the line of JSON: medians of both, and that of the turns' ratios, of which more is better.

    What took turns is compared turn by turn; what stands against a limit, which is one number, each time against it.
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


def agree(name: str, found: float, foreseen: float, goal: float, unit: str, **more: Any) -> None:
    """Print the line of JSON for a count against a model: the ratio is the smaller of both over the larger."""
    ratio = 1.0 if found == foreseen else min(found, foreseen) / max(found, foreseen)
    line = {"name": name, "ours": found, "theirs": foreseen, "ratio": round(ratio, 4), "goal": goal, "unit": unit}
    print(json.dumps(line | more), flush=True)
