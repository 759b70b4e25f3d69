"""A process that is frozen or late is noticed after the timeout and named; one that works for long is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from headstart.training import heartbeat

# One process imports torch and forks three ranks per scenario, all at the same time.
_CODE = """
import json, os, signal, socket, sys, time
import torch, torch.distributed as dist
from headstart.training.world import joined
TIMEOUT, RANKS = 10.0, 3

def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)

def scenario(name, world):
    world.all_reduce_sum(1.0, in_step=True)
    if name == "frozen before a step" and world.rank == 1:
        freeze()
    if name == "late for a step" and world.rank == 1:
        time.sleep(100)
    world.all_reduce_sum(1.0, in_step=True)
    if name == "frozen before the gradients" and world.rank == 2:
        freeze()
    dist.all_reduce(torch.ones(1000))
    if name.startswith("rank 0 frozen") and world.is_main:
        freeze()
    if name.startswith("rank 0 prepares for long") and world.is_main:
        time.sleep(2 * TIMEOUT)
    if name == "ends in the middle" and world.rank == 1:
        os._exit(1)
    world.barrier()
    return world.broadcast("passed")

def rank_of(name, rank, port, out):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                   "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_PORT": str(port),
                   "TORCHELASTIC_USE_AGENT_STORE": str("holds the store" not in name)}
    try:
        with joined(TIMEOUT) as world:
            said = scenario(name, world)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    os.write(out, (json.dumps([name, rank, said]) + "\\n").encode())
    os._exit(0)

torch.set_num_threads(1)
names, out = sys.argv[1:], os.dup(1)
listeners, children = {}, []
for name in names:
    # The launchers' stores run threads, so they start after all forks; until then connections wait at their ports.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if "holds the store" in name:
        listener.close()
    else:
        listeners[port] = listener.detach()
    for rank in range(RANKS):
        if not (child := os.fork()):
            rank_of(name, rank, port, out)
        children.append(child)
stores = [
    dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    for port, listener in listeners.items()
]
deadline = time.monotonic() + 90
while children and time.monotonic() < deadline:
    children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
    if len(children) <= sum(" frozen" in f" {n}" or n.startswith("late") for n in names):
        break
    time.sleep(0.05)
for child in children:
    os.kill(child, signal.SIGKILL)
"""
_LATE = {
    "frozen before a step": 1, "late for a step": 1, "frozen before the gradients": 2,
    "rank 0 frozen while it prepares": 0, "ends in the middle": 1, "rank 0 prepares for long": None,
    "rank 0 frozen, which holds the store": 0, "rank 0 prepares for long and holds the store": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def said() -> dict[str, dict[int, str]]:
    """What each rank said in each scenario, by the name of the scenario and the rank."""
    command = [sys.executable, "-c", _CODE, *_LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    answers: dict[str, dict[int, str]] = {name: {} for name in _LATE}
    for name, rank, words in map(json.loads, done.stdout.splitlines()):
        answers[name][rank] = words
    return answers


@pytest.mark.parametrize("name", [name for name, rank in _LATE.items() if rank is not None])
def test_a_process_that_is_missing_is_named_by_the_others(said, name):
    late = _LATE[name]
    others = {rank: words for rank, words in said[name].items() if rank != late}
    assert len(others) == 2, f"a rank waits for ever: {said[name]}"
    for words in others.values():
        assert words.startswith("LateProcessError") and f"gave up on rank {late}" in words, words
        assert "Run the same command to resume from the last checkpoint" in words


@pytest.mark.parametrize("name", [name for name, rank in _LATE.items() if rank is None])
def test_a_process_that_works_for_longer_than_the_timeout_is_waited_for(said, name):
    assert said[name] == {0: "passed", 1: "passed", 2: "passed"}


def test_a_late_reading_accuses_nobody(monkeypatch):
    """After a suspend, the beats of the others are as old as the own reading."""
    now = [1000.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, second = (heartbeat.Heartbeat(rank, 2, 20.0, "start", "127.0.0.1", store.port) for rank in range(2))
    second.stop()
    for now[0] in (1000.0, 1100.0, 1105.0, 1110.0, 1115.0, 1120.0):
        first.require_all()
    now[0] = 1125.0
    with pytest.raises(heartbeat.LateProcessError, match="rank 1"):
        first.require_all()
    first.stop()
