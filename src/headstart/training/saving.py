"""When a checkpoint is written: at once, or in a thread while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from headstart.core.log import logger
from headstart.training.checkpoint import CheckpointStore, Snapshot, TrainState

Written = Callable[[Path], None]
"""Called on every rank after a checkpoint was written and verified, by the thread that wrote it."""


class Saver:
    """Writes checkpoints at once; the run waits until each is written and verified."""

    def __init__(self, store: CheckpointStore) -> None:
        """Take the store that they are written to."""
        self.store = store

    def save(self, train_state: TrainState, sharded: bool, written: Written, wait: bool = True) -> Path:
        """Write a checkpoint and return its path; all processes call this."""
        path = self.store.save(train_state, sharded)
        written(path)
        return path

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written in the background."""

    def wait(self) -> None:
        """Wait for a checkpoint that is written in the background, and raise its error."""

    def close(self) -> None:
        """Wait for a checkpoint that is written in the background, and log its error."""


class BackgroundSaver(Saver):
    """Copies the state to host memory, then writes, verifies and reports it in a thread; one checkpoint at a time.

    The copies are kept, so that the next save need not allocate them. Each process has such a thread, and the threads
    have a process group of their own, because the main threads exchange gradients meanwhile.
    """

    def __init__(self, store: CheckpointStore) -> None:
        """Prepare the copies' memory; nothing is written yet."""
        super().__init__(store)
        self._background = replace(store, world=store.world.apart())
        # Pinned memory makes copies from a GPU faster.
        options = StagingOptions(
            use_pinned_memory=torch.cuda.is_available(), use_shared_memory=False, use_async_staging=False,
            use_non_blocking_copy=False,
        )  # fmt: skip
        self._stager = DefaultStager(options)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, train_state: TrainState, sharded: bool, written: Written, wait: bool = True) -> Path:
        """Copy the state, after the previous checkpoint is written; with `wait`, write it at once instead."""
        self.wait()
        if wait:
            return super().save(train_state, sharded, written)
        snapshot = self.store.snapshot(train_state, sharded)
        tensors = self._stager.stage(snapshot.tensors)
        assert isinstance(tensors, dict), "the stager copies at once"
        copied = replace(snapshot, tensors=tensors)
        self._thread = threading.Thread(target=self._write, args=(copied, written), name="checkpoint")
        self._thread.start()
        return self.store.path_of(train_state.progress)

    @property
    def is_writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise the error of the last checkpoint if it could not be written."""
        if not self.is_writing:
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written, and raise its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait until the last checkpoint is written, and log its error, because another one ends the run."""
        try:
            self.wait()
        except Exception as error:
            logger.error("the last checkpoint was not written: %s", error)

    def _write(self, snapshot: Snapshot, written: Written) -> None:
        try:
            written(self._background.write(snapshot))
        except BaseException as error:  # raised by the main thread
            self._error = error


def saver_of(store: CheckpointStore, in_background: bool) -> Saver:
    """Return what writes the checkpoints of a run."""
    return BackgroundSaver(store) if in_background else Saver(store)
