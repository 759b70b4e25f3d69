"""A disk that fills up during a save: a small tmpfs, and another file that takes the room at the worst moment."""

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

# At a save the disk is filled but for some bytes. `blind` runs do not look at the free space before they write.
_TRAP = """
import os, pathlib, shutil
from headstart.core import artifact
from headstart.training import checkpoint
disk, at, left = pathlib.Path({disk!r}), {at}, {left}
save, count = checkpoint.save, [0]

def filled(*arguments, **more):
    count[0] += 1
    if count[0] == at:
        room = shutil.disk_usage(disk).free - left
        with (disk / "ballast").open("wb") as file:
            file.write(bytes(max(0, room)))
    return save(*arguments, **more)

checkpoint.save = filled
if {blind}:
    artifact.require_space = lambda folder, size: None
"""


def available(ground: Ground) -> bool:
    """Say whether a tmpfs may be mounted."""
    try:
        with _disk(ground.fresh("disk")):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def campaign(ground: Ground, count: int, seed: int = 0, subject: str = "masked_lm") -> Found:
    """Fill the disk `count` times, at a random save and to a random byte of it."""
    found = Found("disk full during a save (tmpfs of 64 MB)", "last good checkpoint intact; clear error")
    chance, reference = random.Random(seed), ground.reference(subject)
    size = sum(path.stat().st_size for path in (reference.folder / "checkpoints").rglob("*.safetensors")) // 2
    for number in range(count):
        with _disk(ground.fresh("disk")) as disk:
            folder, at = disk / "run", chance.randint(2, STEPS - 3)
            # Every other run is kept from looking before it writes, so that the write itself fails.
            blind, left = number % 2 == 0, chance.randint(0, size)
            code = _TRAP.format(disk=str(disk), at=at, left=left, blind=blind)
            child = ground.nursery.start(ground.command(subject, folder), code=code)
            left_with, said = child.wait(), child.said()
            found.count += 1
            if left_with != 2 or "disk" not in said or "Traceback" in said:
                found.failures.append(f"at save {at} with {left} bytes left it left with {left_with}: {said[-500:]}")
                continue
            before = saved_steps(folder)
            (disk / "ballast").unlink()
            again = ground.nursery.start(ground.command(subject, folder))
            if again.wait() != 0 or not before:
                found.failures.append(f"it did not go on from {before}: {again.said()[-500:]}")
                continue
            found.failures += differences(folder, reference.folder)
    found.notes = ["in every other one the look at the free space was taken away, so that the write itself failed"]
    return found


@contextmanager
def _disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        shutil.rmtree(place, ignore_errors=True)
