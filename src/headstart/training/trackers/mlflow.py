"""MLflow, configured by its own environment variables, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headstart.training.trackers.base import PROJECT, Tracker, run_config, run_name

if TYPE_CHECKING:
    from headstart.training.loop import Loop


class MLflowCallback(Tracker):
    """Logs every entry to an MLflow run, which a resumed training continues.

    It uses MLflow's client, not the active run, so that a run which the process has open is left alone.
    """

    package = "mlflow"
    _client: Any = None
    _id: str | None = None

    def on_train_begin(self, loop: Loop) -> None:
        """Start or resume a run and log the training settings as parameters."""
        self._client, self._status = self.api.MlflowClient(), "KILLED"
        self._id, resumed = self.run_id(loop, lambda: self._create_run(loop))
        if resumed:
            self._client.update_run(self._id, status="RUNNING")
            return
        parameters = [self.api.entities.Param(key, str(value)) for key, value in run_config(loop).items()]
        self._client.log_batch(self._id, params=parameters)

    def _create_run(self, loop: Loop) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(experiment_id, run_name=run_name(loop)).info.run_id
        return run_id

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Log the values as metrics."""
        now, step = int(time.time() * 1000), loop.progress.step
        metrics = [self.api.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def on_train_end(self, loop: Loop) -> None:
        """Mark the run as finished."""
        self._status = "FINISHED"

    def close(self) -> None:
        """Record how the run ended: FINISHED, or KILLED if it was stopped or failed."""
        if self._id is not None:
            self._client.set_terminated(self._id, self._status)
            self._id = None
