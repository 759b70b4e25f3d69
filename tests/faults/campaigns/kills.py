"""`kill -9` at random moments, repeated until a run ends: it must end like an undisturbed one, to the bit."""

from __future__ import annotations

import random
import signal

from .report import Found
from .subjects import FINETUNED, STEPS, SUBJECTS, Ground, differences


def campaign(ground: Ground, count: int, seed: int = 0, subjects: tuple[str, ...] = (*SUBJECTS, FINETUNED)) -> Found:
    """Kill runs `count` times in all, over the subjects in turn."""
    found = Found(
        "`kill -9` at random moments: " + ", ".join(subjects), "resumes automatically; curve and weights bit-identical"
    )
    rng, in_saves, runs = random.Random(seed), 0, 0
    while found.count < count:
        subject = subjects[runs % len(subjects)]
        reference = ground.reference(subject)
        folder = ground.fresh(f"{subject}-killed")
        kills = 0
        while True:
            # The last run of the campaign ends undisturbed once the number is reached.
            moment = rng.uniform(0, reference.seconds) if found.count + kills < count else 300.0
            child = ground.nursery.start(ground.command(subject, folder))
            child.wait_at_most(moment)
            child.signal(signal.SIGKILL)
            code = child.wait()
            if code != -signal.SIGKILL:
                break
            kills += 1
            in_saves += any(folder.rglob("checkpoints/.step-*"))
        runs += 1
        found.count += kills
        if code != 0:
            found.failures.append(f"{folder}: exited with {code}: {child.output()[-500:]}")
        else:
            found.failures += differences(folder, reference.folder)
    found.notes = [
        f"{runs} runs of {STEPS} steps with dropout, accumulation, two row lengths, a mixture or unfreezing",
        f"{in_saves} kills during a save",
    ]
    return found
