"""The cost of deterministic randomness: steps with and without it alternate in one process."""

from __future__ import annotations

import json
import statistics

from .report import Found
from .subjects import Ground

# Blocks of steps alternate. Without determinism nothing is seeded, and all rows share one generator.
_TRAP = """
import json, pathlib, time
import numpy as np, torch
from headstart.core import randomness
from headstart.training import step as steps
import headstart.objectives.masked_lm as masked_lm
folder, block, count = pathlib.Path({folder!r}), {block}, {count}
free, arms = np.random.default_rng(0), {{"with": [], "without": []}}
seeded, keyed = torch.manual_seed, masked_lm.generator
now = {{"arm": "with", "time": None, "steps": 0}}
torch.manual_seed = lambda number: seeded(number) if now["arm"] == "with" else None
masked_lm.generator = lambda *identity: keyed(*identity) if now["arm"] == "with" else free
gradients = steps.TrainStep.gradients

def timed(self, micro_batches, step, stop, clock):
    current = time.process_time()
    # The first step of a block still reads a batch of the block before.
    if now["time"] is not None and now["steps"] % block > 1:
        arms[now["arm"]].append(current - now["time"])
    now["time"] = current
    now["steps"] += 1
    if now["steps"] % block == 0:
        now["arm"] = "without" if now["arm"] == "with" else "with"
    (folder / "arms.json").write_text(json.dumps(arms)) if now["steps"] == count else None
    return gradients(self, micro_batches, step, stop, clock)

steps.TrainStep.gradients = timed
"""
_BLOCK = 8
_GOAL = 0.03


def campaign(ground: Ground, blocks: int, seed: int = 0) -> Found:
    """Train the quickstart network for some blocks of steps, and compare CPU time, not wall time."""
    folder, notes = ground.fresh("timed"), ground.fresh("times")
    notes.mkdir()
    count = blocks * _BLOCK
    settings = (
        "backbone={family: encoder, kind: modernbert, size: mini, dropout: 0.1}", f"training.budget={count} steps",
        "training.seq_length=128", "training.batch_tokens=4096", "training.micro_batch_size=null",
        "training.eval_count=0", "training.save_interval_minutes=100", f"seed={seed}",
    )  # fmt: skip
    command = ground.command("masked_lm", folder, *settings)
    ground.nursery.run(command, code=_TRAP.format(folder=str(notes), block=_BLOCK, count=count))
    arms = json.loads((notes / "arms.json").read_text())
    costs = {name: statistics.median(values) for name, values in arms.items()}
    excess = costs["with"] / costs["without"] - 1
    found = Found(
        "deterministic training compared with nondeterministic training",
        "costs at most 3 % of throughput",
        len(arms["with"]),
    )
    if excess > _GOAL:
        found.failures.append(f"it costs {excess:.1%}")
    times = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in costs.items())
    found.notes = [
        f"{excess:+.2%} CPU time per step ({times}; medians over alternating blocks, modernbert mini, 4,096 tokens)"
    ]
    return found
