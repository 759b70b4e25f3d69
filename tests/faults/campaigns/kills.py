"""`kill -9` at random moments, again and again until a run ends; it must end as an undisturbed one, to the bit."""

from __future__ import annotations

import random
import signal
import time

from .report import Found
from .subjects import FINETUNED, STEPS, SUBJECTS, Ground, differences


def campaign(ground: Ground, count: int, seed: int = 0, subjects: tuple[str, ...] = (*SUBJECTS, FINETUNED)) -> Found:
    """Kill runs `count` times in all, over the subjects in turn."""
    found = Found(
        "`kill -9` at random moments: " + ", ".join(subjects), "resume by themselves; curve and weights bit-identical"
    )
    chance, in_saves, runs = random.Random(seed), 0, 0
    while found.count < count:
        subject = subjects[runs % len(subjects)]
        reference = ground.reference(subject)
        folder = ground.fresh(f"{subject}-killed")
        kills = 0
        while True:
            # The last run of the campaign is let be once the number is reached.
            moment = chance.uniform(0, reference.seconds) if found.count + kills < count else float("inf")
            child = ground.nursery.start(ground.command(subject, folder))
            start = time.monotonic()
            while child.is_alive and time.monotonic() - start < min(moment, 300):
                time.sleep(0.003)
            child.signal(signal.SIGKILL)
            code = child.wait()
            if code != -signal.SIGKILL:
                break
            kills += 1
            in_saves += any(folder.rglob("checkpoints/.step-*"))
        runs += 1
        found.count += kills
        if code != 0:
            found.failures.append(f"{folder}: left with {code}: {child.said()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    found.notes = [
        f"{runs} runs of {STEPS} steps with dropout, accumulation, two row lengths, a mixture or unfreezing",
        f"{in_saves} kills fell into a save",
    ]
    return found
