"""Fraction of a pre-training step spent waiting for its batch."""

from __future__ import annotations

import time

from pretraining import Ours
from side_by_side import arguments, report

from headstart.training import loop as loops


def main() -> None:
    """Measure the mini encoder with and without a data-loader worker; print one line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=3)
    for workers in (0, 1):
        ours = Ours(f"training.dataloader_num_workers={workers}")
        waited, plain = [0.0], loops.batches_from

        def timed(*given: object) -> object:
            source = iter(plain(*given))  # type: ignore[arg-type]  # noqa: B023
            while True:
                start = time.perf_counter()
                batch = next(source)
                waited[0] += time.perf_counter() - start  # noqa: B023
                yield batch

        loops.batches_from = timed  # type: ignore[assignment]
        steps, shares = 3 if options.quick else 100, []
        ours.tokens_per_second(3)
        for _ in range(options.repetitions):
            waited[0], start = 0.0, time.perf_counter()
            ours.tokens_per_second(steps)
            shares.append(waited[0] / (time.perf_counter() - start))
        loops.batches_from = plain
        report(
            f"waiting for data, {workers} workers, against its limit", shares, [0.005], 1.0, "share of step time",
            less_is_better=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
