"""TensorBoard: scalars in the run's `logs` folder (`tensorboard --logdir RUN/logs`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headstart.training.trackers.base import Tracker

if TYPE_CHECKING:
    from headstart.training.loop import Loop


class TensorBoardCallback(Tracker):
    """Writes each value as a scalar of its name."""

    package = "tensorboard"
    _writer: Any = None

    def on_train_begin(self, loop: Loop) -> None:
        """Open an event file; TensorBoard hides what an interrupted run logged after its last checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        step = loop.progress.step
        self._writer = SummaryWriter(str(loop.logs), purge_step=step + 1 if step else None)

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Write the values as scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, loop.progress.step)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
