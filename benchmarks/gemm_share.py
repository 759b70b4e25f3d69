"""The share of this machine's GEMM ceiling, in the format it is fast in, that a step reaches by useful FLOPs."""

from __future__ import annotations

import statistics
import time

import torch
from pretraining import Ours
from side_by_side import arguments, in_turns, number_format, report

from headstart.core.contracts import Sample
from headstart.stages.forecast import flops_per_token
from headstart.training import precision

SIZES = (1024, 2048, 4096)


def gemm(size: int, seconds: float = 0.5) -> float:
    """Return the FLOPs a second of a large product of matrices, repeated for some time into one place."""
    left, right, product = (torch.randn(size, size, dtype=precision.dtype(number_format())) for _ in range(3))
    torch.mm(left, right, out=product)
    times, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        torch.mm(left, right, out=product)
        times += 1
    return 2 * size**3 * times / passed


def main() -> None:
    """Measure mini and small, one line of JSON each."""
    options = arguments(__doc__ or "")
    for size in ("mini", "small"):
        ours = Ours(f"backbone.size={size}")
        batch = ours.learner.batch([Sample(0, i) for i in range(8)])
        with ours.loop.stepper.eager():
            # Counted under a dispatch mode, where compiled layers would be given up for good.
            per_token = flops_per_token(ours.learner.module, batch, ours.learner.tokens(batch))
        steps = ours.warm_up(options.quick)
        found = in_turns(
            options.repetitions,
            ours=lambda: per_token * ours.tokens_per_second(steps),  # noqa: B023
            theirs=lambda: max(gemm(side) for side in SIZES),
        )
        report(f"share of the {number_format()} GEMM ceiling, {size} encoder", found["ours"], found["theirs"], 0.4,
               "FLOP/s", tokens_per_second=round(statistics.median(found["ours"]) / per_token))  # fmt: skip


if __name__ == "__main__":
    main()
