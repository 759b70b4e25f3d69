"""Useful FLOPs of a training step as a fraction of this machine's GEMM ceiling, in its fastest format.

Also reports where the time of a step goes, by torch's profiler, which shows what limits the other training benchmarks.
"""

from __future__ import annotations

import statistics
import time

import torch
from pretraining import CAUSAL_LM, SPAN_CORRUPTION, Ours
from side_by_side import arguments, in_turns, number_format, report

from headstart.core.data import Sample
from headstart.stages.runs.flops import flops_per_token
from headstart.training import precision

SIZES = (1024, 2048, 4096)
CASES = {
    "mini encoder": ("backbone.size=mini",),
    "small encoder": ("backbone.size=small",),
    "small decoder": CAUSAL_LM,
    "small t5": SPAN_CORRUPTION,
}
KINDS = {
    "products of matrices": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::", "mkl::"),
    "attention": ("aten::_scaled_dot_product",),
    "optimizer": ("Optimizer.step", "aten::_foreach", "aten::_fused_adam"),
    "compiled code": ("## Call CompiledFxGraph", "Torch-Compiled Region", "CompiledFunction"),
}
"""Prefixes of the profiler's event names by kind of work. All others are the loss, copies and Python."""


def gemm(size: int, seconds: float = 0.5) -> float:
    """Return the FLOPs per second of a large matrix product, repeated for `seconds` into one output tensor."""
    left, right, product = (torch.randn(size, size, dtype=precision.dtype(number_format())) for _ in range(3))
    torch.mm(left, right, out=product)
    times, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        torch.mm(left, right, out=product)
        times += 1
    return 2 * size**3 * times / passed


def where_time_goes(ours: Ours, steps: int = 2) -> dict[str, float]:
    """Return the fraction of a step's time in each kind of work."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        ours.tokens_per_second(steps)
    shares = dict.fromkeys([*KINDS, "other"], 0.0)
    events = profiler.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    for event in events:
        kind = next((kind for kind, names in KINDS.items() if event.key.startswith(names)), "other")
        shares[kind] += event.self_cpu_time_total / whole
    return {kind: round(share, 3) for kind, share in shares.items()}


def main() -> None:
    """Measure each network and print one line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=3)
    for name, overrides in CASES.items():
        ours = Ours(*overrides)
        batch = ours.learner.batch([Sample(0, i) for i in range(8)])
        with ours.loop.train_step.eager():
            # FLOPs are counted under a dispatch mode, which would permanently disable compiled layers.
            per_token = flops_per_token(ours.learner.module, batch, ours.learner.tokens(batch))
        steps = ours.warm_up(options.quick)
        found = in_turns(
            options.repetitions,
            ours=lambda: per_token * ours.tokens_per_second(steps),  # noqa: B023
            theirs=lambda: max(gemm(side) for side in SIZES),
        )
        report(f"share of the {number_format()} GEMM ceiling, {name}", found["ours"], found["theirs"], 0.4, "FLOP/s",
               tokens_per_second=round(statistics.median(found["ours"]) / per_token),
               time_goes=where_time_goes(ours))  # fmt: skip


if __name__ == "__main__":
    main()
