"""A request to stop is recorded until the end of a step; a second Ctrl-C ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from headstart.training import interruption
from headstart.training.interruption import ELASTIC, MachineLeftError, Stopped, StopSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_recorded_and_the_handlers_are_restored(number, capfd):
    before = signal.getsignal(number)
    with StopSignal(None) as stop:
        assert not stop.requested()
        os.kill(os.getpid(), number)
        assert stop.requested() and stop.reason == signal.Signals(number).name
    assert signal.getsignal(number) is before
    assert ("press Ctrl-C again to exit at once" in capfd.readouterr().err) == (number == signal.SIGINT)


def test_a_stop_file_requests_a_stop_and_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.training.interruption._POLL_SECONDS", 0.0)
    stop = StopSignal(tmp_path)
    assert not stop.requested()
    (tmp_path / "stop").touch()
    assert stop.requested()
    stopped = stop.acknowledge()
    assert isinstance(stopped, KeyboardInterrupt) and "the file stop" in str(stopped)
    assert not (tmp_path / "stop").exists() and not StopSignal(tmp_path).requested()


def test_the_disk_is_not_checked_at_every_step(tmp_path):
    stop = StopSignal(tmp_path)
    assert not stop.requested()
    (tmp_path / "stop").touch()
    assert not stop.requested(), "it checked again within a second"


def test_a_request_to_another_process_is_acknowledged_too():
    assert isinstance(StopSignal(None).acknowledge(), Stopped)


def test_where_machines_may_join_a_process_waits_for_the_signal_of_its_own_launcher(monkeypatch):
    """An exit without one would be the end of the run, as the launcher sees it."""
    monkeypatch.setenv(ELASTIC, "1")
    with StopSignal(None) as stop:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert str(stop.acknowledge(["SIGTERM", None])) == "stopped by SIGTERM" and stop.reason == "SIGUSR1"
        timer.join()


def test_where_machines_may_join_only_a_machine_that_leaves_stops_for_good(monkeypatch):
    monkeypatch.setenv(ELASTIC, "1")
    monkeypatch.setattr(interruption, "_SIGNAL_SECONDS", 0.0)
    with pytest.raises(MachineLeftError, match="another machine was asked to stop"):
        StopSignal(None).acknowledge([None, "SIGTERM"])
    assert isinstance(StopSignal(None).acknowledge(["the file stop", None]), Stopped), "for all machines"


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal(None) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop.requested()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_gets_no_signals():
    requested = []

    def work():
        with StopSignal(None) as stop:
            requested.append(stop.requested())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [False]


_BUSY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from headstart.training.interruption import StopSignal
with StopSignal(None) as stop:
    print("ready", flush=True)
    while not stop.requested():
        pass
    print("first", flush=True)
    sum(range(10**12))  # no Python handler runs in here
"""


def test_a_second_interrupt_ends_the_process_even_during_a_long_call():
    process = subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, text=True)
    for word in ("ready", "first"):
        assert process.stdout.readline().strip() == word
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT
