"""`kill -9` at random moments, repeated until a run ends: it must end like an undisturbed one, to the bit.

In `background`, checkpoints are written in the background. After each kill, its loss is measured in steps.
"""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

from headstart.core import artifact
from headstart.core.errors import ArtifactError

from .report import Found
from .subjects import FINETUNED, STEPS, SUBJECTS, Ground, curve, differences

_BOUND = 2
"""Steps that a kill may cost when each step is saved in the background: the last one, and the one being written."""


def campaign(ground: Ground, count: int, seed: int = 0, subjects: tuple[str, ...] = (*SUBJECTS, FINETUNED)) -> Found:
    """Kill runs `count` times in all, over the subjects in turn."""
    found = Found(
        "`kill -9` at random moments: " + ", ".join(subjects), "resumes automatically; curve and weights bit-identical"
    )
    return _campaign(ground, found, count, seed, subjects)


def background(ground: Ground, count: int, seed: int = 0, subjects: tuple[str, ...] = tuple(SUBJECTS)) -> Found:
    """Kill runs that save each step in the background; the undisturbed runs save at once."""
    found = Found(
        f"`kill -9` at random moments, `training.async_save`: {', '.join(subjects)}",
        f"0 unreadable, at most {_BOUND} steps lost; curve and weights identical to those of a run that saves at once",
    )
    lost: list[int] = []
    more = ("training.async_save=true", "training.save_interval_minutes=1e-6")
    found = _campaign(ground, found, count, seed, subjects, more, lost)
    found.failures += [f"a kill cost {steps} steps" for steps in lost if steps > _BOUND]
    found.notes.append(f"steps lost: {', '.join(f'{lost.count(n)} × {n}' for n in sorted(set(lost)))}")
    return found


def _campaign(
    ground: Ground, found: Found, count: int, seed: int, subjects: tuple[str, ...], more: tuple[str, ...] = (),
    lost: list[int] | None = None,
) -> Found:  # fmt: skip
    rng, in_saves, runs = random.Random(seed), 0, 0
    while found.count < count:
        subject = subjects[runs % len(subjects)]
        reference = ground.reference(subject)
        folder = ground.fresh(f"{subject}-killed")
        kills = 0
        while True:
            # The last run of the campaign ends undisturbed once the number is reached.
            moment = rng.uniform(0, reference.seconds) if found.count + kills < count else 300.0
            child = ground.nursery.start(ground.command(subject, folder, *more))
            child.wait_at_most(moment)
            child.signal(signal.SIGKILL)
            code = child.wait()
            if code != -signal.SIGKILL:
                break
            kills += 1
            in_saves += any(folder.rglob("checkpoints/.step-*"))
            if lost is not None:
                lost.append(_lost(folder, found))
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


def _lost(folder: Path, found: Found) -> int:
    """Return the logged steps after the newest checkpoint of a killed run; a damaged one is a failure."""
    saved = [0]
    for path in (folder / "checkpoints").glob("step-*"):
        try:
            artifact.verify(path, "checkpoint")
            saved.append(int(path.name.removeprefix("step-")))
        except ArtifactError as error:
            found.failures.append(str(error))
    return max(0, _last_step(folder) - max(saved))


def _last_step(folder: Path) -> int:
    """Return the last step that a killed run has logged; its last line may be torn."""
    try:
        return max((line["step"] for line in curve(folder)), default=0)
    except ValueError:
        lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
