"""Progress on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest

from headstart.training.checkpoint import Progress
from headstart.training.progress import ProgressCallback


def at(step: int) -> SimpleNamespace:
    """Return the part of a loop that the callback reads."""
    return SimpleNamespace(progress=Progress(step=step))


def values(fraction: float, loss: float = 1.5) -> dict[str, float]:
    return {"loss": loss, "share": fraction, "tokens_per_second": 1234.0}


def started(**given) -> ProgressCallback:
    callback = ProgressCallback("pretrain", **given)
    callback.on_train_begin(at(0))
    return callback


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "headstart")
    return lambda: caplog.messages


def test_without_a_terminal_plain_lines_are_logged(lines):
    callback = started(interval=0.0)
    callback.on_log(at(10), values(0.25))
    callback.on_log(at(10), {"validation/accuracy": 0.5})
    callback.on_log(at(20), values(0.5))
    callback.close()
    first, second = lines()
    assert first.startswith("pretrain  25% step 10 · loss 1.500 · 1,234 tokens/s")
    assert "accuracy 0.500" in second and "left" in second


def test_lines_are_spaced_but_the_last_one_always_appears(lines):
    callback = started(interval=3600.0)
    for step in range(1, 11):
        callback.on_log(at(step), values(step / 10))
    assert [line.split()[3] for line in lines()] == ["10"]


def test_quiet_shows_nothing(lines, capsys):
    callback = started(quiet=True, interval=0.0)
    callback.on_log(at(1), values(1.0))
    callback.close()
    assert lines() == [] and capsys.readouterr() == ("", "")


def test_in_a_terminal_there_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    callback = started()
    callback.on_log(at(10), values(0.5))
    callback.close()
    assert "pretrain" in screen.getvalue() and "loss 1.500" in screen.getvalue()
