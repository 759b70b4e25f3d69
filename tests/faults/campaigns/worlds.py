"""Other numbers of processes and loader workers from one resume to the next: the global batches stay the same."""

from __future__ import annotations

import json
from pathlib import Path

from .report import Found
from .subjects import STEPS, Ground

CHAIN = (1, 2, 1, 4)
"""Numbers of processes, one after the other, each for a part of the run."""
WORKERS = (0, 1, 4)

# Every process records a hash of each row that it trains on, and is asked to stop at a step.
_TRAP = """
import hashlib, json, os, pathlib
from headstart.training.interruption import StopSignal
from headstart.training.step import TrainStep
folder, stop_at, now = pathlib.Path({folder!r}), {stop_at}, {{"step": 0}}
gradients = TrainStep.gradients

def logged(self, micro_batches, step, stop, clock):
    rows = []
    for batch in micro_batches:
        for row in range(len(next(iter(batch.values())))):
            content = b"".join(name.encode() + tensor[row].numpy().tobytes() for name, tensor in sorted(batch.items()))
            rows.append(hashlib.sha256(content).hexdigest())
    with (folder / f"rows-{{os.getpid()}}.jsonl").open("a") as file:
        file.write(json.dumps([step, rows]) + "\\n")
    now["step"] = step + 1
    return gradients(self, micro_batches, step, stop, clock)

TrainStep.gradients = logged
StopSignal.requested = lambda self: self.file is not None and now["step"] >= stop_at
"""


def campaign(ground: Ground, workers: tuple[int, ...] = WORKERS, subject: str = "masked_lm") -> Found:
    """Run the chain with each number of workers, and compare the batches of every part of the run."""
    found = Found("world size 1→2→1→4, loader workers 0/1/4", "the same global batches, by hash")
    expected = _batches(ground, subject, [(1, STEPS)], 0)
    stops = [STEPS * (index + 1) // len(CHAIN) for index in range(len(CHAIN))]
    for count in workers:
        batches = _batches(ground, subject, list(zip(CHAIN, stops, strict=True)), count)
        for size, start, stop in zip(CHAIN, [0, *stops], stops, strict=False):
            found.count += 1
            wrong = [step for step in range(start, stop) if batches.get(step) != expected[step]]
            if wrong:
                found.failures.append(f"{size} processes, {count} workers: other batches at steps {wrong}")
    found.notes = [f"{STEPS} steps over two row lengths; each part resumes from the one before"]
    return found


def _batches(ground: Ground, subject: str, parts: list[tuple[int, int]], workers: int) -> dict[int, list[str]]:
    """Train in parts of (processes, last step), and return the rows of each global batch."""
    folder, notes = ground.fresh("world"), ground.fresh("rows")
    notes.mkdir()
    for size, stop in parts:
        command = ground.command(
            subject, folder, f"training.dataloader_num_workers={workers}", "training.save_interval_minutes=100"
        )
        last = stop == STEPS
        code = _TRAP.format(folder=str(notes), stop_at=STEPS + 1 if last else stop)
        children = (
            ground.nursery.ranks(command, size, code=code) if size > 1 else [ground.nursery.start(command, code=code)]
        )
        codes = [child.wait(600) for child in children]
        assert codes == [0 if last else 75] * size, (
            f"{codes}: {children[0].output()[-2000:]} {children[-1].output()[-1000:]}"
        )
    return _collect(notes)


def _collect(notes: Path) -> dict[int, list[str]]:
    batches: dict[int, list[str]] = {}
    for path in notes.glob("rows-*.jsonl"):
        for line in path.read_text().splitlines():
            step, rows = json.loads(line)
            batches.setdefault(step, []).extend(rows)
    return {step: sorted(rows) for step, rows in batches.items()}
