"""Ctrl-C waits for the end of a step, and only there."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from headstart.training.interruption import held_back


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_comes_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        interrupt()
        interrupt()
        done.append("the rest of the step")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_an_interrupt_nothing_happens_and_the_handler_is_back():
    with held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_fault_comes_through_and_the_handler_is_back():
    with pytest.raises(ZeroDivisionError), held_back():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_who_ignores_interrupts_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_train_too():
    done = []

    def work():
        with held_back():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]
