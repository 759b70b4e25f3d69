"""`kill -9` at each system call of one save: strace delivers SIGKILL at the entry of the call.

The process stops itself just before the save, strace is attached to it, and it continues. The traced thread is the one
that saves. A kill at the entry of each call covers every state of the disk between two effects of a save.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from .report import Found
from .subjects import Ground

# A toy run with two good checkpoints; a third is saved, and the oldest is removed.
_SAVE = """
import os, signal, sys, pathlib, torch
from headstart.training.checkpoint import CheckpointStore, Progress, TrainState
folder = pathlib.Path({folder!r})
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(module.parameters())
store = CheckpointStore(folder, "run", keep=2)

def advance(step):
    module(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return TrainState(module, optimizer, Progress(step=step))

def restored():
    result = store.restore(module, optimizer)
    return result.progress.step if result else 0
"""
_FIRST = (
    _SAVE
    + """
for step in (1, 2):
    store.save(advance(step))
os._exit(0)
"""
)
_THIRD = (
    _SAVE
    + """
assert restored() == 2
state = advance(3)
os.kill(os.getpid(), signal.SIGSTOP)
store.save(state)
os._exit(0)
"""
)
# The run resumes from the second checkpoint or the third, and the next save succeeds and leaves no other files.
_CHECK = (
    _SAVE
    + """
step = restored()
assert step in (2, 3), step
store.save(advance(4))
left = sorted(path.name for path in folder.iterdir())
assert left == [f"step-{{step:09d}}", "step-000000004"], left
assert restored() == 4
os._exit(step)
"""
)
# The end of the process, and waiting for another thread: how often that happens differs from save to save, and it
# changes nothing on the disk.
_UNREPEATED = {"exit_group", "futex", "sched_yield"}


def available() -> bool:
    """Return True if strace is installed and may attach to a process."""
    if shutil.which("strace") is None:
        return False
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        done = subprocess.run(
            ["strace", "-p", str(sleeper.pid), "-e", "inject=all:signal=KILL:when=1"],
            capture_output=True,
            timeout=10,
            check=False,
        )
        return sleeper.wait(timeout=5) == -signal.SIGKILL and done.returncode in (0, 137, -9)
    except (subprocess.TimeoutExpired, OSError):
        return False
    finally:
        sleeper.kill()


def campaign(ground: Ground, count: int | None = None, seed: int = 0) -> Found:
    """Kill a save at each of its system calls, or at `count` of them: each kind once, then random ones."""
    found = Found("`kill -9` at each system call of one save (strace's inject)", "0 unreadable runs")
    good = ground.fresh("saves")
    good.mkdir()
    ground.nursery.run([], code=_FIRST.format(folder=str(good)))
    calls = _calls(ground, good)
    selected = list(range(len(calls)))
    if count is not None:
        kinds = {name: index for index, (name, _) in reversed(list(enumerate(calls)))}
        rest = [index for index in selected if index not in kinds.values()]
        selected = [*kinds.values(), *random.Random(seed).sample(rest, max(0, min(len(rest), count - len(kinds))))]
    resumed: Counter[int] = Counter()
    for index in selected:
        name, number = calls[index]
        folder = ground.fresh("killed-save")
        shutil.copytree(good, folder)
        code = _traced(ground, folder, f"inject={name}:signal=KILL:when={number}")
        found.count += 1
        if code != -signal.SIGKILL:
            found.failures.append(f"call {index}, {name} {number}: the save was not killed, but exited with {code}")
            continue
        check = ground.nursery.start([], code=_CHECK.format(folder=str(folder)))
        step = check.wait()
        resumed[step] += 1
        if step not in (2, 3):
            found.failures.append(f"killed at call {index}, {name} {number}: {check.output()[-600:]}")
        shutil.rmtree(folder)
    kinds_of_all, kinds_hit = ({calls[index][0] for index in indices} for indices in (range(len(calls)), selected))
    found.notes = [
        f"a save makes {len(calls)} calls of {len(kinds_of_all)} kinds; "
        f"killed at {len(selected)} of {len(kinds_hit)} kinds",
        f"{resumed[2]} resumed from the checkpoint before, {resumed[3]} from the new one",
    ]
    return found


def _calls(ground: Ground, good: Path) -> list[tuple[str, int]]:
    """Return the system calls of an undisturbed save in order, each with its number among the calls of its name."""
    folder = ground.fresh("traced-save")
    shutil.copytree(good, folder)
    trace = ground.work / "trace.txt"
    assert _traced(ground, folder, "trace=all", ["-o", str(trace)]) == 0
    shutil.rmtree(folder)
    counts: Counter[str] = Counter()
    calls: list[tuple[str, int]] = []
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.match(r"(\w+)\(", line)
        if match and match[1] not in _UNREPEATED:
            counts[match[1]] += 1
            calls.append((match[1], counts[match[1]]))
    assert {"fsync", "rename", "write"} <= {name for name, _ in calls}, "the trace shows no save"
    return calls


def _traced(ground: Ground, folder: Path, expression: str, more: list[str] | None = None) -> int:
    """Save under strace, and return the exit code of the saving process."""
    child = ground.nursery.start([], code=_THIRD.format(folder=str(folder)))
    _wait_until(lambda: _state(child.pid) == "T" or not child.is_alive)
    tracer = subprocess.Popen(
        ["strace", "-p", str(child.pid), "-e", expression, *(more or [])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "attached" in tracer.stderr.readline()
    os.kill(child.pid, signal.SIGCONT)
    try:
        return child.wait(60)
    finally:
        tracer.communicate()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _wait_until(condition) -> None:
    """Poll a condition: the kernel reports the stop of a process to its parent only, which is the nursery."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
