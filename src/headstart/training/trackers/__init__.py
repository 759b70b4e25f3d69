"""Experiment trackers, one file each. A recipe names them in `training.report_to`; metrics.jsonl is always written."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from headstart.training.callbacks import Callback
from headstart.training.progress import ProgressCallback
from headstart.training.trackers.metrics_file import MetricsFileCallback

_CLASSES = {
    "tensorboard": "TensorBoardCallback",
    "wandb": "WandbCallback",
    "mlflow": "MLflowCallback",
    "trackio": "TrackioCallback",
}
"""The class of each tracker, in the module of its name."""


def reporting_callbacks(title: str, report_to: Sequence[str], quiet: bool = False) -> list[Callback]:
    """Return the callbacks that report a run: progress on stderr, metrics.jsonl, and the named trackers.

    A tracker whose package is missing raises a `ResourceError` here, before any work is done.
    """
    trackers = [getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])(quiet) for name in report_to]
    return [ProgressCallback(title, quiet), MetricsFileCallback(), *trackers]
