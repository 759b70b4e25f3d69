"""SIGTERM, SIGSTOP with SIGCONT, and a wall clock that jumps: nothing is lost, to the bit."""

from __future__ import annotations

import os
import random
import signal

from .report import Found
from .subjects import Ground, differences

# The wall clock jumps by up to a year at every read. It is faked inside the process: setting the machine's clock would
# disturb everything else on it.
_JUMPS = """
import random, time
rng, wall = random.Random({seed}), time.time
time.time = lambda: wall() + rng.uniform(-3e7, 3e7)
time.time_ns = lambda: int(time.time() * 1e9)
"""


def terminated(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Send SIGTERM at random moments; the run exits with 75 and, resumed, ends like an undisturbed one."""
    found, rng = Found("SIGTERM", "saves, exits with 75, nothing lost"), random.Random(seed)
    reference, early = ground.reference(subject), 0
    while found.count < count:
        folder = ground.fresh("terminated")
        while True:
            moment = rng.uniform(0, reference.seconds) if found.count < count else 300.0
            child = ground.nursery.start(ground.command(subject, folder))
            child.wait_at_most(moment)
            child.signal(signal.SIGTERM)
            code = child.wait()
            if code == 0:
                break
            found.count += 1
            # Before the command line has installed its handlers, a signal ends the process, and nothing has been done.
            early += code == -signal.SIGTERM
            if code not in (75, -signal.SIGTERM):
                found.failures.append(f"exited with {code}: {child.output()[-500:]}")
                break
        found.failures += differences(folder, reference.folder) if code == 0 else []
    found.notes = [f"{early} arrived before the signal handlers were installed and ended the process at once"]
    return found


def paused(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Stop the process several times per run for a random time, and let it continue."""
    found, rng = Found("SIGSTOP, then SIGCONT", "nothing lost"), random.Random(seed)
    reference = ground.reference(subject)
    while found.count < count:
        folder = ground.fresh("paused")
        child = ground.nursery.start(ground.command(subject, folder))
        while child.is_alive and found.count < count:
            child.wait_at_most(rng.uniform(0, reference.seconds / 5))
            child.signal(signal.SIGSTOP)
            child.wait_at_most(rng.uniform(0.01, 0.5))
            if child.is_alive:
                os.kill(child.pid, signal.SIGCONT)
                found.count += 1
        if child.wait() != 0:
            found.failures.append(f"exited with an error: {child.output()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    return found


def jumping_clock(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Run with a wall clock that jumps at every read."""
    found = Found("wall clock that jumps, by up to a year either way", "nothing lost")
    reference = ground.reference(subject)
    for number in range(count):
        folder = ground.fresh("clock")
        child = ground.nursery.start(ground.command(subject, folder), code=_JUMPS.format(seed=seed + number))
        found.count += 1
        if child.wait() != 0:
            found.failures.append(f"exited with an error: {child.output()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    found.notes = ["at every read; faked inside the process"]
    return found
