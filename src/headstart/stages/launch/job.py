"""One job: a recipe, the command that runs it, and what it gets from the cluster."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from headstart.stages.launch.settings import LaunchSettings

PORT = 29500
"""The port at which the machines of a job meet, where each has an address of its own."""


@dataclass(frozen=True)
class Job:
    """A command of Headstart and where it runs."""

    settings: LaunchSettings
    command: tuple[str, ...]
    """`headstart`, the verb, the recipe and the overrides."""
    recipe: Path
    folder: Path
    """The working directory, from which relative paths in the recipe are read."""

    def shell(self, rendezvous: str = "", nodes: str | None = None) -> str:
        """Return the command for a shell; `rendezvous` and `nodes` are inserted unquoted, as words of the shell."""
        settings = self.settings
        words = shlex.join(self.command)
        if settings.processes > 1 or settings.nodes > 1:
            words += f" --processes {settings.processes}"
        if settings.nodes > 1:
            words += f" --nodes {nodes or settings.nodes} --rendezvous {rendezvous}"
        return words
