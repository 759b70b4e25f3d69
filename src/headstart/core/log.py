"""The logger of the package, and the plain lines that the command line makes of it.

Library code logs through `logger`: progress as `info`, anything that a user should act on as `warning`. Nothing is
printed unless the application configures logging, except that Python shows warnings on stderr by default. The command
line calls `show`, and so does the entry point of every process that Headstart starts for its own work.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from headstart.core.recipes.variables import hide

logger = logging.getLogger("headstart")


class _Lines(logging.StreamHandler[TextIO]):
    """Writes each message as one plain line to whatever `sys.stderr` is at that moment."""

    @property
    def stream(self) -> TextIO:
        """Return the current `sys.stderr`, which a progress bar or a test may have replaced."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore the stream that the base class sets once."""


class _Message(logging.Formatter):
    """The message alone, without the values of the variables of a recipe."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return hide(super().format(record))


def show(quiet: bool) -> None:
    """Print the package's log as plain lines on stderr; with `quiet`, only warnings and errors.

    A second call changes the level and adds no second handler.
    """
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        handler = _Lines()
        handler.setFormatter(_Message())
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
