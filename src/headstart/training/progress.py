"""How a run shows itself: a rich bar in a terminal, plain lines elsewhere, TensorBoard and JSON lines on disk."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headstart.core import artifact


class Tracker(Protocol):
    """Receives what the loop measures."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take named numbers of one step; `share` is the part of the budget that is spent."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class Bar:
    """A live bar with loss, tokens a second and time left; a line every half minute without a terminal."""

    def __init__(self, title: str, quiet: bool = False, interval: float = 30.0) -> None:
        """Choose between bar, lines and silence by what standard error is."""
        self.title, self.quiet, self.interval = title, quiet, interval
        self.started = self.last_line = time.monotonic()
        self.first_share: float | None = None
        self.held_out: list[str] = []
        self.bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self.bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=8),
                TextColumn("{task.percentage:>3.0f}% {task.fields[text]}"),
                console=Console(stderr=True),
            )
            self.task: TaskID = self.bar.add_task(title, total=1.0, text="")
            self.bar.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show the newest numbers."""
        held_out = [
            f"{n.removeprefix('validation/')} {v:.3f}" for n, v in values.items() if n.startswith("validation/")
        ]
        self.held_out = held_out or self.held_out
        if self.quiet or "loss" not in values:
            return
        share = values["share"]
        text = f"loss {values['loss']:.3f} · {values['tokens_per_second']:,.0f} tokens/s · {self._left(share)} left"
        now = time.monotonic()
        if self.bar:
            # Eighty columns hold one held-out number.
            text += "".join(f" · held-out {number}" for number in self.held_out[:1])
            self.bar.update(self.task, completed=min(share, 1.0), text=text)
        elif now - self.last_line >= self.interval or share >= 1:
            self.last_line = now
            text += f" · held-out {' '.join(self.held_out)}" if self.held_out else ""
            print(f"{self.title} {share:4.0%} step {step:,} · {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar down."""
        if self.bar:
            self.bar.stop()

    def _left(self, share: float) -> str:
        if self.first_share is None:
            self.first_share = share
        done = share - self.first_share
        if done <= 0:
            return "?"
        seconds = max(0.0, (1 - share) / done * (time.monotonic() - self.started))
        return (
            f"{seconds / 3600:.1f} h"
            if seconds >= 5400
            else f"{seconds / 60:.0f} min"
            if seconds >= 90
            else f"{seconds:.0f} s"
        )


class TensorBoard:
    """Writes scalars for TensorBoard into the run's `logs` folder."""

    def __init__(self, folder: Path, start_step: int) -> None:
        """Open a writer; what an interrupted run logged after its last checkpoint is purged."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=start_step or None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write each value as a scalar of its name."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self.writer.close()


class JsonLines:
    """Appends one JSON object a measurement to `logs/metrics.jsonl`, the curve that tools and tests read."""

    def __init__(self, path: Path, start_step: int) -> None:
        """Drop lines past the step at which the run goes on, so that the curve has no step twice."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_curve(path) if line["step"] <= start_step] if start_step else []
        artifact.write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line."""
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def sync(self) -> None:
        """Force what was written to disk: a curve must not end before the checkpoint that a run goes on from."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def sync(trackers: Sequence[Tracker]) -> None:
    """Force the curve to disk, before a checkpoint."""
    for tracker in trackers:
        if isinstance(tracker, JsonLines):
            tracker.sync()


@contextmanager
def tracking(title: str, logs: Path, start_step: int, quiet: bool) -> Iterator[list[Tracker]]:
    """Open what every run shows itself by (bar or lines, TensorBoard, JSON lines), and close it in the end."""
    trackers: list[Tracker] = [
        Bar(title, quiet),
        TensorBoard(logs, start_step),
        JsonLines(logs / "metrics.jsonl", start_step),
    ]
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()


def read_curve(path: Path) -> list[dict[str, Any]]:
    """Read the measurements of a run; a last line torn by a crash is left out."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
