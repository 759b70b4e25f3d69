"""TensorBoard: scalars in the run's `logs` folder (`tensorboard --logdir RUN/logs`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from headstart.training.trackers.base import Tracker

if TYPE_CHECKING:
    from headstart.training.loop import Loop

_VERSION = "brain.Event:2"


class TensorBoardCallback(Tracker):
    """Writes each value as a scalar of its name.

    The event file is written here and not by `SummaryWriter`, which puts the name of the machine and the number of the
    process into the name of the file.
    """

    package = "tensorboard"
    _file: BinaryIO | None = None
    _writer: Any = None

    def on_train_begin(self, loop: Loop) -> None:
        """Open an event file; TensorBoard hides what an interrupted run logged after its last checkpoint."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        loop.logs.mkdir(parents=True, exist_ok=True)
        self._file = _new_file(loop.logs)
        self._writer = RecordWriter(self._file)
        self._write(file_version=_VERSION)
        if loop.progress.step:
            self._write(step=loop.progress.step + 1, session_log=SessionLog(status=SessionLog.START))

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Write the values as scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, value in values.items():
            scalar = Summary.Value(tag=name, simple_value=value)
            self._write(step=loop.progress.step, summary=Summary(value=[scalar]))

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()
            self._file = self._writer = None

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


def _new_file(folder: Path) -> BinaryIO:
    """Create an event file; TensorBoard reads the files of a folder in the order of their names."""
    start = f"events.out.tfevents.{int(time.time()):010d}"
    for number in count():
        try:
            return (folder / f"{start}.{number}").open("xb")
        except FileExistsError:
            continue
    raise AssertionError("unreachable")
