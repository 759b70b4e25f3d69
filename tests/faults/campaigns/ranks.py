"""One of several processes that train together is killed: the job restarts automatically and ends the same.

The processes are started by the command line's own launcher, which is torch's elastic agent (torchrun).
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .report import Found
from .subjects import STEPS, Ground, Reference, curve, differences

_PROCESSES = 2


def campaign(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Kill one of two processes `count` times, at random moments from their start to the end of the run."""
    found = Found("a rank killed under torchrun, 2 ranks", "0 samples lost or doubled; the same curve")
    rng, reference, runs = random.Random(seed), _reference(ground, subject), 0
    while found.count < count:
        folder, runs = ground.fresh("ranks"), runs + 1
        job, log = _launch(ground, subject, folder, restarts=count + 1)
        found.count += _kill_ranks(job, folder, rng, count - found.count)
        code = job.wait(timeout=900)
        steps = sum("loss" in line for line in curve(folder)) if (folder / "logs").is_dir() else 0
        if code != 0 or steps != STEPS:
            found.failures.append(f"{folder}: exited with {code} after {steps} steps: {log.read_text()[-800:]}")
        else:
            found.failures += differences(folder, reference.folder)
    found.notes = [
        f"{runs} runs of {STEPS} steps; a curve and weights that are equal to the bit exclude lost or doubled samples"
    ]
    return found


def stopped(ground: Ground, subject: str = "masked_lm", look: Callable[[int], None] | None = None) -> Found:
    """Send SIGTERM to the launcher of a run in progress, and start the run again.

    `look` is called with the number of the launcher's process again and again, from its start to its end.
    """
    found, reference = Found("SIGTERM to the launcher", "saves, exits with 75"), _reference(ground, subject)
    folder = ground.fresh("launched")
    job, log = _launch(ground, subject, folder, restarts=3)
    _wait_for_step(job, folder, STEPS // 3, time.monotonic() + 240, look)
    assert job.poll() is not None or _last_step(folder) >= STEPS // 3, log.read_text()
    job.send_signal(signal.SIGTERM)
    _wait_for_step(job, folder, math.inf, time.monotonic() + 120, look)
    code, found.count = job.poll(), 1
    if code != 75:
        found.failures.append(f"exited with {code}: {log.read_text()[-800:]}")
    children = ground.nursery.ranks(ground.command(subject, folder), _PROCESSES)
    if any(child.wait(600) for child in children):
        found.failures.append(f"it did not resume: {children[0].output()[-800:]}")
    else:
        found.failures += differences(folder, reference.folder)
    return found


def _launch(ground: Ground, subject: str, folder: Path, restarts: int) -> tuple[subprocess.Popen[bytes], Path]:
    log = ground.work / "logs" / f"{folder.name}.log"
    command = [*ground.command(subject, folder), "--processes", str(_PROCESSES), "--restarts", str(restarts)]
    with log.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-m", "headstart", *command], stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
    return job, log


def _kill_ranks(job: subprocess.Popen[bytes], folder: Path, rng: random.Random, most: int) -> int:
    """Kill a rank of the job after each start, until the job ends; return how many were killed."""
    kills, known = 0, set[int]()
    while job.poll() is None and kills < most:
        ranks = _ranks(job.pid)
        new = [rank for rank in ranks if rank.pid not in known]
        if len(ranks) < _PROCESSES or not new:
            _pause(job, 0.05)
            continue
        known |= {rank.pid for rank in ranks}
        # A third of the kills come before training, while packages are imported and the process group forms.
        if rng.random() < 1 / 3:
            _pause(job, rng.uniform(0, 8))
        else:
            _wait_for_step(job, folder, _last_step(folder) + rng.randint(1, 6), time.monotonic() + 240)
        try:
            victim = rng.choice(ranks)
            if job.poll() is None and victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
                os.kill(victim.pid, signal.SIGKILL)
                kills += 1
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return kills


def _wait_for_step(
    job: subprocess.Popen[bytes], folder: Path, step: float, deadline: float, look: Callable[[int], None] | None = None
) -> None:
    """Poll the log of a run until a step, the end of the job or a deadline; `look` is called each time."""
    while job.poll() is None and _last_step(folder) < step and time.monotonic() < deadline:
        if look is not None:
            look(job.pid)
        _pause(job, 0.01 if look is None else 0.1)


def _pause(job: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for some time, or for the end of the job."""
    try:
        job.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


def _ranks(job: int) -> list[psutil.Process]:
    try:
        children = psutil.Process(job).children()
        return [child for child in children if "--processes" in child.cmdline() or "pretrain" in child.cmdline()]
    except psutil.NoSuchProcess:
        return []


def _last_step(folder: Path) -> int:
    path = folder / "logs" / "metrics.jsonl"
    try:
        return path.read_bytes().count(b'"loss"')
    except OSError:
        return 0


def _reference(ground: Ground, subject: str) -> Reference:
    """Return the undisturbed run of two processes."""
    key = (subject, "ranks")
    if key not in ground.references:
        folder = ground.fresh("ranks-undisturbed")
        start = time.monotonic()
        children = ground.nursery.ranks(ground.command(subject, folder), _PROCESSES)
        codes = [child.wait(600) for child in children]
        assert codes == [0] * _PROCESSES, f"{codes}: {children[0].output()[-1500:]}"
        ground.references[key] = Reference(folder, time.monotonic() - start)
    return ground.references[key]
