"""What the trackers share: a lazy import with an install hint, and a run that a resumed training continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from headstart.core import artifact
from headstart.core.errors import ResourceError
from headstart.core.recipes.variables import hide
from headstart.training.callbacks import Callback

if TYPE_CHECKING:
    from headstart.training.loop import Loop

PROJECT = "headstart"
"""The project or experiment of all runs, unless the tracker's own environment variable names another."""
_IDS = "trackers.json"


class Tracker(Callback):
    """Base class of trackers that are packages of their own.

    Where a tracker writes to is set by its own environment variables and logins, as without Headstart.
    """

    package: ClassVar[str]

    def __init__(self, quiet: bool = False) -> None:
        """Import the package, or raise with the command that installs it."""
        self.quiet = quiet
        try:
            self.api: Any = import_module(self.package)
        except ImportError as error:
            raise ResourceError(
                f"`training.report_to` lists {self.package}, but that package is not installed",
                do=f"Run `pip install {self.package}`, or remove {self.package} from `training.report_to`",
            ) from error

    def run_id(self, loop: Loop, create: Callable[[], str]) -> tuple[str, bool]:
        """Return the tracker's id of this run, and True if the run resumes one that the tracker has.

        `create` makes the id of a run that starts from step 0, or to which this tracker was added later. Ids are stored
        in `logs/trackers.json`.
        """
        path = loop.logs / _IDS
        ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if loop.progress.step and self.package in ids:
            return ids[self.package], True
        loop.logs.mkdir(parents=True, exist_ok=True)
        ids[self.package] = create()
        artifact.write_whole(path, json.dumps(ids, indent=2) + "\n")
        return ids[self.package], False


def run_name(loop: Loop) -> str:
    """Return the name that trackers show: the path of the run's folder."""
    return hide(str(loop.run_info.folder))


def run_config(loop: Loop) -> dict[str, Any]:
    """Return the training settings and the seed, as plain JSON types."""
    return {**loop.settings.model_dump(mode="json"), "seed": loop.run_info.seed}
