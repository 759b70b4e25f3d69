"""The share of this machine's bf16 GEMM ceiling that a pre-training step reaches, by useful FLOPs."""

from __future__ import annotations

import time

import torch
from pretraining import Ours
from side_by_side import arguments, in_turns, report

from headstart.core.contracts import Sample
from headstart.stages.forecast import flops_per_token


def gemm(size: int = 2048, times: int = 6) -> float:
    """Return the FLOPs a second of a large product of matrices in bf16, without a reordering of its inputs."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    left @ right
    start = time.perf_counter()
    for _ in range(times):
        left @ right
    return 2 * size**3 * times / (time.perf_counter() - start)


def main() -> None:
    """Measure mini and small, one line of JSON each."""
    options = arguments(__doc__ or "")
    for size in ("mini", "small"):
        ours = Ours(f"backbone.size={size}")
        batch = ours.learner.batch([Sample(0, i) for i in range(8)])
        per_token = flops_per_token(ours.learner.module, batch, ours.learner.tokens(batch))
        steps = 2 if options.quick else 12
        ours.tokens_per_second(3)
        found = in_turns(
            options.repetitions,
            ours=lambda: per_token * ours.tokens_per_second(steps),  # noqa: B023
            theirs=gemm,
        )
        report(f"share of the bf16 GEMM ceiling, {size} encoder", found["ours"], found["theirs"], 0.4, "FLOP/s")


if __name__ == "__main__":
    main()
