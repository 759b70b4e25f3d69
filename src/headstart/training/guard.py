"""Skips the optimizer step when the loss or a gradient is NaN or Inf, and records which rows caused it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.core.data import Sample
from headstart.core.errors import HeadstartError
from headstart.training import jsonl
from headstart.training.checkpoint import Progress

WINDOW = 128
"""Good steps from which spikes are detected (OLMo's skip-step optimizer also looks back 128 steps)."""
_MIN_STEPS = 32
"""Good steps before any step can be called a spike."""
_DEVIATIONS = 6.0
"""Robust standard deviations above the median at which a loss is a spike (OLMo uses 6 plain ones)."""
_MIN_RATIO = {"loss": 1.1, "gradient_norm": 3.0}
"""Minimum ratio of a spike to the median: a window that hardly varies would otherwise make every ripple a spike."""
_MIN_GAP = 100
"""Steps between two spikes whose rows are searched, which costs a forward pass per row."""
QUARANTINE, SPIKES = "quarantine.jsonl", "spikes.jsonl"

RowLosses = Callable[[], dict[Sample, float]]
"""Returns the loss per prediction of each row of the batch separately; empty if it cannot be computed."""


class DivergedError(HeadstartError):
    """The loss or its gradient was NaN or Inf for many steps in a row."""


class NanGuard:
    """Checks the loss and gradient norm of every step before the optimizer step."""

    def __init__(self, logs: Path | None, limit: int) -> None:
        """Record into `logs`, None on ranks that do not write; raise after `limit` bad steps in a row."""
        self.logs, self.limit = logs, limit

    def resume(self, step: int) -> None:
        """Remove the records after the step at which a run resumes: the run will write them again."""
        for name in (QUARANTINE, SPIKES):
            path = self.logs / name if self.logs else None
            if path is not None and path.is_file():
                jsonl.drop_after(path, step)

    def check(
        self, progress: Progress, loss: float, norm: float, samples: Callable[[], Sequence[Sample]], rows: RowLosses,
        step: int | None = None,
    ) -> bool:  # fmt: skip
        """Return True if the optimizer may step; record a bad step or a spike together with its rows.

        `step` is the index of the step if it is not the one that the progress is at.
        """
        step = progress.step if step is None else step
        values = {"step": step + 1, "loss": loss, "gradient_norm": norm}
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._quarantine(progress, values, samples(), rows)
            return False
        progress.bad_steps = 0
        deviations = _deviations(progress.window, loss, norm)
        if deviations:
            searched = step - progress.last_spike < _MIN_GAP and progress.last_spike > 0
            losses = {} if searched else self._row_losses(rows)
            worst = dict(sorted(losses.items(), key=lambda item: -item[1])[:5])
            self._write(SPIKES, values | deviations, samples(), worst)
            progress.last_spike = step + 1
        progress.window = [*progress.window[1 - WINDOW :], (loss, norm)]
        return True

    def _quarantine(self, progress: Progress, values: dict[str, Any], batch: Sequence[Sample], rows: RowLosses) -> None:
        losses = self._row_losses(rows)
        bad_rows = {sample: loss for sample, loss in losses.items() if not math.isfinite(loss)}
        self._write(QUARANTINE, values, batch, bad_rows)
        progress.bad_steps += 1
        if progress.bad_steps >= self.limit:
            # If most rows are bad, the weights are the cause, not the rows.
            raise _diverged(progress, values, list(bad_rows) if 2 * len(bad_rows) <= len(batch) else [])

    def _row_losses(self, rows: RowLosses) -> dict[Sample, float]:
        return rows() if self.logs else {}

    def _write(self, name: str, values: dict[str, Any], batch: Sequence[Sample], rows: dict[Sample, float]) -> None:
        if self.logs is None:
            return
        line = values | {
            "samples": [[sample.epoch, sample.index] for sample in batch],
            "rows": [{"epoch": s.epoch, "index": s.index, "loss": value} for s, value in rows.items()],
        }
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _diverged(progress: Progress, values: dict[str, Any], bad_rows: Sequence[Sample]) -> DivergedError:
    rows = ", ".join(str(sample.index) for sample in bad_rows[:5])
    advice = "Lower `training.learning_rate`, or raise `training.warmup_ratio`"
    return DivergedError(
        f"the loss is {values['loss']} and the gradient norm {values['gradient_norm']} at step {progress.step}: NaN or "
        f"Inf for {progress.bad_steps} steps in a row",
        do=(f"Check rows {rows}, whose own loss is NaN or Inf" if bad_rows else advice)
        + f". These steps changed no weights; logs/{QUARANTINE} lists their rows",
    )


def _deviations(window: Sequence[tuple[float, float]], loss: float, norm: float) -> dict[str, float]:
    """Return by how many robust deviations loss and norm exceed the median; only for spikes, else empty."""
    if len(window) < _MIN_STEPS:
        return {}
    deviations: dict[str, float] = {}
    for name, value, before in zip(_MIN_RATIO, (loss, norm), zip(*window, strict=True), strict=True):
        median = statistics.median(before)
        scale = 1.4826 * statistics.median(abs(x - median) for x in before)
        if value > _MIN_RATIO[name] * median and value > median + _DEVIATIONS * scale:
            deviations[f"{name}_deviations"] = round((value - median) / max(scale, 1e-12), 1)
    return deviations
