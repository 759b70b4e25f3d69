"""Weights & Biases, configured by its own environment variables, such as WANDB_PROJECT and WANDB_MODE=offline."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headstart.training.trackers.base import PROJECT, Tracker, run_config, run_name

if TYPE_CHECKING:
    from headstart.training.loop import Loop


class WandbCallback(Tracker):
    """Logs every entry to a W&B run, which a resumed training continues."""

    package = "wandb"
    _run: Any = None

    def on_train_begin(self, loop: Loop) -> None:
        """Start or resume a run of its own, beside any that the process has open."""
        run_id, _ = self.run_id(loop, lambda: secrets.token_hex(8))
        self._run = self.api.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run_name(loop), id=run_id, resume="allow",
            config=run_config(loop), reinit="create_new", settings=self.api.Settings(silent=self.quiet),
        )  # fmt: skip

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Log the values; W&B ignores steps that an interrupted run has already logged."""
        self._run.log(dict(values), step=loop.progress.step)

    def close(self) -> None:
        """Upload what is left and finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
