"""A wish to stop, however it comes, waits for the end of a step; a second Ctrl-C does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from headstart.training.interruption import Stopped, StopSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_remembered_and_the_handlers_come_back(number, capfd):
    before = signal.getsignal(number)
    with StopSignal(None) as notice:
        assert not notice.asked()
        os.kill(os.getpid(), number)
        assert notice.asked() and notice.came == signal.Signals(number).name
    assert signal.getsignal(number) is before
    assert ("Ctrl-C again leaves at once" in capfd.readouterr().err) == (number == signal.SIGINT)


def test_a_file_in_the_folder_is_a_wish_to_stop_and_is_taken_away_when_obeyed(tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.training.interruption._LOOKED_FOR_EVERY", 0.0)
    notice = StopSignal(tmp_path)
    assert not notice.asked()
    (tmp_path / "stop").touch()
    assert notice.asked()
    stopped = notice.obeyed()
    assert isinstance(stopped, KeyboardInterrupt) and "the file stop" in str(stopped)
    assert not (tmp_path / "stop").exists() and not StopSignal(tmp_path).asked()


def test_the_disk_is_not_asked_at_every_step(tmp_path):
    notice = StopSignal(tmp_path)
    assert not notice.asked()
    (tmp_path / "stop").touch()
    assert not notice.asked(), "it looked again within a second"


def test_another_process_s_wish_is_obeyed_too():
    assert isinstance(StopSignal(None).obeyed(), Stopped)


def test_one_who_ignores_interrupts_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal(None) as notice:
            os.kill(os.getpid(), signal.SIGINT)
            assert not notice.asked()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_train_too():
    found = []

    def work():
        with StopSignal(None) as notice:
            found.append(notice.asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


_BUSY = """
import os, sys, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from headstart.training.interruption import Notice
with Notice(None) as notice:
    print("ready", flush=True)
    while not notice.asked():
        time.sleep(0.01)
    print("first", flush=True)
    sum(range(10**12))  # no Python handler runs in here
"""


def test_a_second_interrupt_leaves_at_once_even_in_the_midst_of_a_long_call():
    process = subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, text=True)
    for word in ("ready", "first"):
        assert process.stdout.readline().strip() == word
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT
