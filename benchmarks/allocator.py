"""Speed of pre-training steps with the allocator settings that `headstart` starts with, against glibc's defaults.

Each repetition runs in a new process, because glibc reads its settings when a process starts.
"""

from __future__ import annotations

import os
import subprocess
import sys

from pretraining import Ours
from side_by_side import arguments, in_turns, report

from headstart.stages.runs.environment import KEEP, TUNABLES

CASES = {
    "masked LM, mini encoder": (),
    "masked LM, mini encoder, not compiled": ("training.torch_compile=false",),
    "causal LM, mini decoder": (
        "objective={name: causal_lm}", "backbone={family: decoder, kind: modernbert-decoder, size: mini, dropout: 0.0}"
    ),
}  # fmt: skip


def tokens_per_second(case: str, quick: bool, tunables: str) -> float:
    """Train a few steps in a new process with these allocator settings, and return tokens per second."""
    command = [sys.executable, __file__, "--side", case, "quick" if quick else "whole"]
    environment = {**os.environ, TUNABLES: tunables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure each case and print one line of JSON for each."""
    if "--side" in sys.argv:
        case, quick = sys.argv[-2:]
        ours = Ours(*CASES[case])
        print(ours.tokens_per_second(ours.warm_up(quick == "quick")))
        return
    options = arguments(__doc__ or "", repetitions=3)
    for case in CASES:
        found = in_turns(
            options.repetitions,
            kept=lambda: tokens_per_second(case, options.quick, KEEP),  # noqa: B023
            plain=lambda: tokens_per_second(case, options.quick, ""),  # noqa: B023
        )
        report(f"allocator, {case}, against glibc's own settings", found["kept"], found["plain"], 1.0, "tokens/s")


if __name__ == "__main__":
    main()
