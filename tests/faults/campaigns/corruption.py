"""Flipped bits and truncated files in a checkpoint: each is detected, and the checkpoint before is restored."""

from __future__ import annotations

import json

from .report import Found
from .subjects import Ground

# A toy run with two checkpoints. The newest is damaged and repaired `count` times in one process.
_DAMAGE = """
import json, os, pathlib, random, torch
from headstart.training.checkpoint import CheckpointStore, Progress, TrainState
folder, count, rng = pathlib.Path({folder!r}), {count}, random.Random({seed})
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(module.parameters())
store, kept = CheckpointStore(folder / "checkpoints", "run", keep=2), {{}}
for step in (1, 2):
    module(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    store.save(TrainState(module, optimizer, Progress(step=step)))
    kept[step] = {{name: value.clone() for name, value in module.state_dict().items()}}
newest = folder / "checkpoints" / "step-000000002"
files = sorted(path for path in newest.iterdir())
failures, kinds = [], {{"bit flip": 0, "truncation": 0, "deletion": 0}}
for number in range(count):
    path = rng.choice(files)
    content = path.read_bytes()
    how = rng.choices(list(kinds), [8, 3, 1])[0]
    kinds[how] += 1
    if how == "bit flip":
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        if bytes(damaged) == content:
            damaged[0] ^= 1
        path.write_bytes(bytes(damaged))
    elif how == "truncation":
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        path.unlink()
    try:
        restored = store.restore(module, optimizer)
        same = all(torch.equal(value, kept[1][name]) for name, value in module.state_dict().items())
        named = len(restored.skipped) == 1 and newest.name in restored.skipped[0]
        if restored.progress.step != 1 or not named or not same:
            failures.append(f"{{number}}: {{how}} in {{path.name}} was not detected")
    except Exception as error:
        failures.append(f"{{number}}: {{how}} in {{path.name}}: {{type(error).__name__}}: {{error}}")
    path.write_bytes(content)
restored = store.restore(module, optimizer)
assert restored.progress.step == 2 and not restored.skipped, "a repaired checkpoint is restored again"
(folder / "found.json").write_text(json.dumps([failures, kinds, [path.name for path in files]]))
os._exit(0)
"""


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Damage the newest of two checkpoints `count` times, in any of its files."""
    folder = ground.fresh("damaged")
    folder.mkdir()
    ground.nursery.run([], code=_DAMAGE.format(folder=str(folder), count=count, seed=seed))
    failures, kinds, files = json.loads((folder / "found.json").read_text())
    counts = ", ".join(f"{number} × {kind}" for kind, number in kinds.items())
    return Found(
        "bit flips and truncations in a checkpoint", "all detected; restores the checkpoint before", count, failures,
        [counts, f"in any of {', '.join(files)}"],
    )  # fmt: skip
