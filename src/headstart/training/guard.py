"""Bad numbers stay away from the weights, and the rows they came from are written down."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.core.data import Sample
from headstart.core.errors import HeadstartError
from headstart.training.checkpoint import Progress

WINDOW = 128
"""Good steps by which a spike is told from noise (as in OLMo's skip-step optimizer, which looks back 128)."""
_ENOUGH = 32
"""Good steps before anything can be called a spike."""
_DEVIATIONS = 6.0
"""Robust standard deviations over the median at which a loss is a spike (OLMo uses 6 plain ones)."""
_LEAST = {"loss": 1.1, "gradient_norm": 3.0}
"""Times the median that a spike has at the least: a window that hardly varies would else call every ripple one."""
_LEAST_GAP = 100
"""Steps between two spikes whose rows are looked for: that costs a forward pass for each row."""
QUARANTINE, SPIKES = "quarantine.jsonl", "spikes.jsonl"

RowLosses = Callable[[], dict[Sample, float]]
"""Gives the loss per prediction of each row of the batch by itself; empty where that cannot be found out."""


class DivergedError(HeadstartError):
    """The loss or its gradient stayed infinite or undefined for many steps."""


class NanGuard:
    """Judges every step by its loss and gradient norm, before the update."""

    def __init__(self, logs: Path | None, limit: int) -> None:
        """Write into a folder, or nowhere in a process that does not write; give up after `limit` bad steps in a row.

        NaN is never multiplied by nought here: a bad step simply makes no update.
        """
        self.logs, self.limit = logs, limit

    def resume(self, step: int) -> None:
        """Forget what was written down after the step at which a run goes on: it will come again."""
        for name in (QUARANTINE, SPIKES):
            path = self.logs / name if self.logs else None
            if path is not None and path.is_file():
                kept = [line for line in read(path) if line["step"] <= step]
                artifact.write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))

    def admits(
        self, progress: Progress, loss: float, norm: float, samples: Callable[[], Sequence[Sample]], rows: RowLosses
    ) -> bool:
        """Say whether the update may be made, and write down a step that is bad or a spike with its rows."""
        good = math.isfinite(loss) and math.isfinite(norm)
        values = {"step": progress.step + 1, "loss": loss, "gradient_norm": norm}
        if not good:
            batch = samples()
            found = {sample: value for sample, value in self._rows(rows).items() if not math.isfinite(value)}
            self._write(QUARANTINE, values, batch, found)
            progress.bad_steps += 1
            if progress.bad_steps >= self.limit:
                # Where most rows are bad, the weights are to blame and not the rows.
                raise _diverged(progress, loss, norm, list(found) if 2 * len(found) <= len(batch) else [])
            return False
        progress.bad_steps = 0
        excess = _excess(progress.window, loss, norm)
        if excess:
            known = progress.step - progress.last_spike < _LEAST_GAP and progress.last_spike > 0
            found = {} if known else self._rows(rows)
            worst = dict(sorted(found.items(), key=lambda item: -item[1])[:5])
            self._write(SPIKES, values | excess, samples(), worst)
            progress.last_spike = progress.step + 1
        progress.window = [*progress.window[1 - WINDOW :], (loss, norm)]
        return True

    def _rows(self, rows: RowLosses) -> dict[Sample, float]:
        return rows() if self.logs else {}

    def _write(self, name: str, values: dict[str, Any], samples: Sequence[Sample], found: dict[Sample, float]) -> None:
        if self.logs is None:
            return
        line = values | {
            "samples": [[sample.epoch, sample.index] for sample in samples],
            "rows": [{"epoch": s.epoch, "index": s.index, "loss": value} for s, value in found.items()],
        }
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _diverged(progress: Progress, loss: float, norm: float, to_blame: Sequence[Sample]) -> DivergedError:
    rows = ", ".join(str(sample.index) for sample in to_blame[:5])
    advice = "Lower training.learning_rate or raise training.warmup_ratio"
    return DivergedError(
        f"loss {loss}, gradient norm {norm} at step {progress.step}: bad for {progress.bad_steps} steps in a row",
        do=(f"Look at the rows {rows}, which are bad by themselves" if to_blame else advice)
        + f"; those steps changed no weight, and logs/{QUARANTINE} names their rows",
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Read what was written down; a last line torn by a crash is left out."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def _excess(window: Sequence[tuple[float, float]], loss: float, norm: float) -> dict[str, float]:
    """Return by how many robust deviations loss or norm stand out, for what does; empty for a step like the others."""
    if len(window) < _ENOUGH:
        return {}
    found: dict[str, float] = {}
    for name, value, before in zip(_LEAST, (loss, norm), zip(*window, strict=True), strict=True):
        middle = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(one - middle) for one in before)
        if value > _LEAST[name] * middle and value > middle + _DEVIATIONS * spread:
            found[f"{name}_deviations"] = round((value - middle) / max(spread, 1e-12), 1)
    return found
