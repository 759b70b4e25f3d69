"""SIGTERM, SIGSTOP with SIGCONT, and a wall clock that jumps: nothing is lost, to the bit."""

from __future__ import annotations

import os
import random
import signal
import time

from .report import Found
from .subjects import Ground, differences

# The clock of the wall goes back and forth by up to a year at every look. It is faked in the process: setting the
# machine's would disturb everything else on it.
_JUMPS = """
import random, time
chance, wall = random.Random({seed}), time.time
time.time = lambda: wall() + chance.uniform(-3e7, 3e7)
time.time_ns = lambda: int(time.time() * 1e9)
"""


def terminated(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Send SIGTERM at random moments; the run exits with code 75, and ends as an undisturbed one."""
    found, chance = Found("SIGTERM", "saves, exits with code 75, nothing lost"), random.Random(seed)
    reference, early = ground.reference(subject), 0
    while found.count < count:
        folder = ground.fresh("terminated")
        while True:
            moment = chance.uniform(0, reference.seconds) if found.count < count else 300.0
            child, start = ground.nursery.start(ground.command(subject, folder)), time.monotonic()
            while child.is_alive and time.monotonic() - start < moment:
                time.sleep(0.003)
            child.signal(signal.SIGTERM)
            code = child.wait()
            if code == 0:
                break
            found.count += 1
            # Before the command line has begun to listen, a signal ends the process, and nothing has been done.
            early += code == -signal.SIGTERM
            if code not in (75, -signal.SIGTERM):
                found.failures.append(f"left with {code}: {child.said()[-500:]}")
                break
        found.failures += differences(folder, reference.folder) if code == 0 else []
    found.notes = [f"{early} came before the process listened and ended it at once"]
    return found


def paused(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Stop the process for a while, several times a run, and let it go on."""
    found, chance = Found("SIGSTOP, then SIGCONT", "nothing lost"), random.Random(seed)
    reference = ground.reference(subject)
    while found.count < count:
        folder = ground.fresh("paused")
        child = ground.nursery.start(ground.command(subject, folder))
        while child.is_alive and found.count < count:
            time.sleep(chance.uniform(0, reference.seconds / 5))
            child.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.01, 0.5))
            if child.is_alive:
                os.kill(child.pid, signal.SIGCONT)
                found.count += 1
        if child.wait() != 0:
            found.failures.append(f"left with an error: {child.said()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    return found


def jumping_clock(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Run under a wall clock that jumps at every look."""
    found = Found("wall clock that jumps, by up to a year either way", "nothing lost")
    reference = ground.reference(subject)
    for number in range(count):
        folder = ground.fresh("clock")
        child = ground.nursery.start(ground.command(subject, folder), code=_JUMPS.format(seed=seed + number))
        found.count += 1
        if child.wait() != 0:
            found.failures.append(f"left with an error: {child.said()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    found.notes = ["at every look; faked inside the process"]
    return found
