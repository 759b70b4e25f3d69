"""The command line, run in this process: with `y` as the answer to every question, and a limit of time."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from headstart import cli

CANARY = "HEADSTART_CANARY"
"""The environment variable with the path of a file that hostile code creates when it runs."""


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    output: str

    def require_sentence(self) -> None:
        """Fail unless the command finished, or explained in a sentence why it did not."""
        assert "Traceback" not in self.output, self.output
        assert "Internal error" not in self.output, self.output
        if self.code != 0:
            assert self.code == 2, self.output
            assert "headstart: " in self.output, self.output


Command = Callable[..., Answer]


def run(arguments: list[str], read_output: Callable[[], str], seconds: int) -> Answer:
    """Run a command; `read_output` returns what was printed."""
    with mock.patch.object(sys, "stdin", io.StringIO("y\n" * 100)), _within(seconds):
        try:
            cli.main(arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Answer(code, read_output())


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Restore the environment at the end, and fail if a hostile module was imported."""
    modules, environment = set(sys.modules), dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert not [name for name in set(sys.modules) - modules if "evil" in name]


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def too_long(*_: Any) -> None:
        raise TimeoutError(f"the command took more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
