"""A disk that fills up during a save: a small tmpfs, and another file that takes the space at the worst moment."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import Found
from .subjects import STEPS, Ground, differences, saved_steps

_SIZE = 64 << 20

# At one save, the disk is filled except for some bytes. `blind` runs do not check the free space before they write.
_TRAP = """
import os, pathlib, shutil
from headstart.core import artifact
from headstart.training.checkpoint import CheckpointStore
disk, at, free = pathlib.Path({disk!r}), {at}, {free}
save, count = CheckpointStore.save, [0]

def filled(*arguments, **more):
    count[0] += 1
    if count[0] == at:
        room = shutil.disk_usage(disk).free - free
        with (disk / "ballast").open("wb") as file:
            file.write(bytes(max(0, room)))
    return save(*arguments, **more)

CheckpointStore.save = filled
if {blind}:
    artifact.require_space = lambda folder, size: None
"""


def available(ground: Ground) -> bool:
    """Return True if a tmpfs can be mounted."""
    try:
        with _disk(ground.fresh("disk")):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def campaign(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Fill the disk `count` times, at a random save and to a random byte of it."""
    found = Found("disk full during a save (tmpfs of 64 MB)", "last good checkpoint intact; clear error message")
    rng, reference = random.Random(seed), ground.reference(subject)
    size = sum(path.stat().st_size for path in (reference.folder / "checkpoints").rglob("*.safetensors")) // 2
    for number in range(count):
        with _disk(ground.fresh("disk")) as disk:
            folder, at = disk / "run", rng.randint(2, STEPS - 3)
            # Every other run does not check the free space, so that the write itself fails.
            blind, free = number % 2 == 0, rng.randint(0, size)
            code = _TRAP.format(disk=str(disk), at=at, free=free, blind=blind)
            child = ground.nursery.start(ground.command(subject, folder), code=code)
            exit_code, output = child.wait(), child.output()
            found.count += 1
            if exit_code != 2 or "disk" not in output or "Traceback" in output:
                found.failures.append(f"save {at}, {free} bytes free: exited with {exit_code}: {output[-500:]}")
                continue
            before = saved_steps(folder)
            (disk / "ballast").unlink()
            again = ground.nursery.start(ground.command(subject, folder))
            if again.wait() != 0 or not before:
                found.failures.append(f"it did not resume from {before}: {again.output()[-500:]}")
                continue
            found.failures += differences(folder, reference.folder)
    found.notes = ["in every other run the check of the free space was disabled, so that the write itself failed"]
    return found


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(folder)], check=True, capture_output=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
