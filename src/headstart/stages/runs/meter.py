"""The price tag of a run that may be killed: written down as it grows, and gone on with."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from headstart.core import artifact
from headstart.evaluation.cost import CostConfig, Meter, PriceTag

_INTERVAL_SECONDS = 15.0


class RecordedMeter(Meter):
    """A meter that starts from `cost.json` of an earlier attempt and, as a tracker, keeps it up to date.

    Work that a crash undid was paid all the same, so it stays in the tag.
    """

    def __init__(self, path: Path, config: CostConfig, energy: bool = True) -> None:
        """Read what earlier attempts cost, if any."""
        self.path = path
        self.written = time.monotonic()
        super().__init__(_read(path), config, energy)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the tag down every quarter of a minute."""
        if time.monotonic() - self.written >= _INTERVAL_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the tag as it stands, whole or not at all."""
        self.written = time.monotonic()
        artifact.write_whole(self.path, json.dumps(self.tag().to_dict(), indent=2) + "\n")

    def close(self) -> None:
        """Nothing to finish: the end of the `with` block writes the last state."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock and write the last state, after an exception too."""
        super().__exit__(kind, error, trace)
        if self.path.parent.is_dir():
            self.write()


def _read(path: Path) -> PriceTag | None:
    try:
        return PriceTag.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
