"""How long training waits for a checkpoint that is written in the background (`training.async_save`), and at once."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from side_by_side import arguments, report

from headstart.training.checkpoint import CheckpointStore, Progress, TrainState
from headstart.training.saving import BackgroundSaver, Saver

WIDTH, LAYERS = 1024, 16
"""17 million weights: with both moments of AdamW, 202 MB."""


class Trained:
    """A network with the state of its optimizer, and two savers that take turns."""

    def __init__(self, layers: int, folder: Path) -> None:
        """Make one step, so that the optimizer has moments."""
        self.module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), fused=True)
        self.steps = 0
        self.at_once = Saver(CheckpointStore(folder / "at-once", "run"))
        self.background = BackgroundSaver(CheckpointStore(folder / "background", "run"))
        self.step()

    def step(self) -> float:
        """Make a step, and return its seconds."""
        start = time.perf_counter()
        self.module(torch.ones(8, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return time.perf_counter() - start

    def save(self, saver: Saver) -> float:
        """Save without waiting for the disk if the saver can, and return the seconds that training waits."""
        state = TrainState(self.module, self.optimizer, Progress(step=self.steps))
        start = time.perf_counter()
        saver.save(state, sharded=False, written=lambda path: None, wait=False)
        return time.perf_counter() - start


def main() -> None:
    """Save in turns, and print one line of JSON: seconds of waiting, and seconds of a step alone and beside a write."""
    options = arguments(__doc__ or "", repetitions=3)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home:
        trained = Trained(2 if options.quick else LAYERS, Path(home))
        alone, beside, waits, blocks = [], [], [], []
        for _ in range(options.repetitions):
            alone.append(trained.step())
            blocks.append(trained.save(trained.at_once))
            trained.step()
            waits.append(trained.save(trained.background))
            start = time.perf_counter()
            while trained.background.is_writing:
                beside.append(trained.step())
            written = time.perf_counter() - start
            trained.background.wait()
            print(f"waited {waits[-1]:.3f} s, wrote for {written:.1f} s; at once {blocks[-1]:.3f} s", file=sys.stderr)
        tensors = [*trained.module.parameters(), *(v for s in trained.optimizer.state.values() for v in s.values())]
        report(
            "waiting for a checkpoint in the background, at once", waits, blocks, 20.0, "s", less_is_better=True,
            megabytes=round(sum(t.numel() * t.element_size() for t in tensors) / 1e6), last_write=round(written, 3),
            step_alone=round(sum(alone) / len(alone), 4), step_beside=round(sum(beside) / max(1, len(beside)), 4),
            load=round(os.getloadavg()[0], 1),
        )  # fmt: skip


if __name__ == "__main__":
    main()
