"""The allocator's settings must be there when a process starts: a verb that trains restarts itself once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headstart.stages.runs import environment

pytestmark = pytest.mark.skipif(not environment._has_glibc(), reason="the settings are glibc's")

_MAPPED = """
import ctypes, os, sys
from headstart.stages.runs import environment
environment.keep_memory(sys.argv[1:])
class Statistics(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.mallinfo2.restype = ctypes.c_void_p, Statistics
before = libc.mallinfo2().hblkhd
libc.malloc(ctypes.c_size_t(64 << 20))
print(os.getpid(), libc.mallinfo2().hblkhd - before, *sys.argv[1:])
"""


def mapped(verb: str, **variables: str) -> tuple[bool, int, list[str]]:
    """Allocate 64 MB in a process with a verb; return whether its id is unchanged, the mapped bytes, its arguments."""
    kept = {name: value for name, value in os.environ.items() if name != environment.TUNABLES}
    with subprocess.Popen(
        [sys.executable, "-c", _MAPPED, verb, "a b"], env=kept | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        number, size, *words = process.communicate(timeout=60)[0].split()
    return int(number) == process.pid, int(size), words


def test_a_verb_that_trains_keeps_freed_memory() -> None:
    same, size, words = mapped("pretrain")
    assert same
    assert words == ["pretrain", "a", "b"]
    assert size < 64 << 20


def test_other_verbs_and_a_user_s_setting_are_unchanged() -> None:
    assert mapped("list")[1] >= 64 << 20
    assert mapped("pretrain", **{environment.TUNABLES: ""})[1] >= 64 << 20


def test_the_allocator_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.TUNABLES, raising=False)
    assert "huge pages" in environment.allocator()
    monkeypatch.setenv(environment.TUNABLES, "glibc.malloc.arena_max=1")
    assert environment.allocator().endswith("GLIBC_TUNABLES: glibc.malloc.arena_max=1")


_POLICY = """
import os
from headstart.stages.runs import environment
environment.wait_passively()
print(os.environ["OMP_WAIT_POLICY"], environment.threads())
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "PASSIVE sleep while they wait"),
        ({"OMP_WAIT_POLICY": "active"}, "active wait as OMP_WAIT_POLICY=active says"),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(variables: dict[str, str], expected: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name != environment.WAIT_POLICY}
    done = subprocess.run(
        [sys.executable, "-c", _POLICY], env=kept | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
