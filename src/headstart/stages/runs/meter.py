"""A cost meter whose price tag is saved while a run is in progress and continued when it resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headstart.core import artifact
from headstart.evaluation.cost import CostConfig, Meter, PriceTag
from headstart.training.callbacks import Callback

if TYPE_CHECKING:
    from headstart.training.loop import Loop

_INTERVAL_SECONDS = 15.0


class RecordedMeter(Meter, Callback):
    """A meter that starts from the `cost.json` of earlier attempts and, as a callback, keeps it up to date.

    Work that was lost in a crash has been paid for, so it stays in the price tag.
    """

    def __init__(self, path: Path, config: CostConfig, energy: bool = True) -> None:
        """Read the cost of earlier attempts, if any."""
        self.path = path
        self.written = time.monotonic()
        super().__init__(_read(path), config, energy)

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Save the price tag if it is due."""
        self.write_if_due()

    def write_if_due(self) -> None:
        """Save the price tag if the last time was 15 seconds ago or more."""
        if time.monotonic() - self.written >= _INTERVAL_SECONDS:
            self.write()

    def write(self) -> None:
        """Save the current price tag atomically."""
        self.written = time.monotonic()
        artifact.write_whole(self.path, json.dumps(self.tag().to_dict(), indent=2) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock and save the final price tag, also after an exception."""
        super().__exit__(kind, error, trace)
        if self.path.parent.is_dir():
            self.write()


def _read(path: Path) -> PriceTag | None:
    try:
        return PriceTag.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
