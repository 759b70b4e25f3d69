"""logs/metrics.jsonl: the training curve, one JSON object per log entry."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from headstart.training import jsonl
from headstart.training.callbacks import Callback

if TYPE_CHECKING:
    from headstart.training.loop import Loop

METRICS = "metrics.jsonl"


class MetricsFileCallback(Callback):
    """Appends one line per log entry to `logs/metrics.jsonl`, which tools and tests read."""

    _file: TextIO | None = None

    def on_train_begin(self, loop: Loop) -> None:
        """Open the file and drop the lines after the step at which the run resumes, so that no step occurs twice."""
        path = loop.logs / METRICS
        path.parent.mkdir(parents=True, exist_ok=True)
        jsonl.drop_after(path, loop.progress.step)
        self._file = path.open("a", encoding="utf-8")

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Append a line."""
        assert self._file is not None
        self._file.write(json.dumps({"step": loop.progress.step, **values}) + "\n")
        self._file.flush()

    def on_save_begin(self, loop: Loop) -> None:
        """Force the lines to disk: the curve must not end before the checkpoint that a run resumes from."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
