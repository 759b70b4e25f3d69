"""Pre-training speed: Headstart's loop against a bare loop with the same model, optimizer and number format."""

from __future__ import annotations

import time

import torch
from pretraining import Ours
from side_by_side import arguments, in_turns, report

from headstart.training import optimizer, precision


class Bare:
    """A minimal training loop: prepared batches, forward, backward, gradient clipping, optimizer step."""

    def __init__(self, ours: Ours) -> None:
        """Use a second model of the same kind, with the same compilation and optimizer."""
        self.batches, self.next = ours.batches(8), 0
        self.objective, self.module = ours.objective, ours.module
        self.weight = ours.objective.weight(self.batches[0])
        settings = ours.recipe.training
        self.precision = precision.resolve(settings.precision, torch.device("cpu"))
        self.clip = settings.max_grad_norm
        self.optimizer = optimizer.build(ours.learner.module, ours.learner.parameter_groups(), settings)
        optimizer.set_rate(self.optimizer, 1e-4)

    def tokens_per_second(self, steps: int) -> float:
        """Train `steps` steps and return tokens per second."""
        start, tokens = time.perf_counter(), 0
        self.module.train()
        for _ in range(steps):
            batch = self.batches[self.next % len(self.batches)]
            self.next += 1
            with precision.autocast(self.precision, torch.device("cpu")):
                loss = self.objective.loss(self.module, batch) / self.weight
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            tokens += batch["input_ids"].numel()
        return tokens / (time.perf_counter() - start)


STEPS = 2
"""Steps per repetition. Other work on the machine varies by the second, and short repetitions see the same."""


def main() -> None:
    """Measure the mini and the small encoder and print one line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=25)
    for size in ("mini", "small"):
        ours, other = Ours(f"backbone.size={size}"), Ours(f"backbone.size={size}")
        bare = Bare(other)
        ours.tokens_per_second(5)
        bare.tokens_per_second(3)
        found = in_turns(
            options.repetitions,
            ours=lambda: ours.tokens_per_second(STEPS),  # noqa: B023
            theirs=lambda: bare.tokens_per_second(STEPS),  # noqa: B023
        )
        report(f"pretrain step, {size} encoder, against a bare loop", found["ours"], found["theirs"], 0.97, "tokens/s")


if __name__ == "__main__":
    main()
