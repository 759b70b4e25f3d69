"""Bits that flip and files that end too early in a checkpoint: each is caught, and the checkpoint before is taken."""

from __future__ import annotations

import json

from .report import Found
from .subjects import Ground

# A toy's run with two checkpoints, spoilt and mended again so many times in one process.
_SPOIL = """
import json, os, pathlib, random, torch
from headstart.training import checkpoint
from headstart.training.checkpoint import Progress
folder, count, chance = pathlib.Path({folder!r}), {count}, random.Random({seed})
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(module.parameters())
kept = {{}}
for step in (1, 2):
    module(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    checkpoint.save(folder / "checkpoints", module, optimizer, Progress(step=step), {{}}, "run", keep=2)
    kept[step] = {{name: value.clone() for name, value in module.state_dict().items()}}
newest = folder / "checkpoints" / "step-000000002"
files = sorted(path for path in newest.iterdir())
failures, kinds = [], {{"bit flip": 0, "truncation": 0, "file gone": 0}}
for number in range(count):
    path = chance.choice(files)
    content = path.read_bytes()
    how = chance.choices(list(kinds), [8, 3, 1])[0]
    kinds[how] += 1
    if how == "bit flip":
        spoilt = bytearray(content)
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        if bytes(spoilt) == content:
            spoilt[0] ^= 1
        path.write_bytes(bytes(spoilt))
    elif how == "truncation":
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        path.unlink()
    try:
        progress, _, passed_over = checkpoint.restore(folder / "checkpoints", module, optimizer, "run")
        same = all(torch.equal(value, kept[1][name]) for name, value in module.state_dict().items())
        if progress.step != 1 or len(passed_over) != 1 or newest.name not in passed_over[0] or not same:
            failures.append(f"{{number}}: {{how}} in {{path.name}} was not caught")
    except Exception as error:
        failures.append(f"{{number}}: {{how}} in {{path.name}}: {{type(error).__name__}}: {{error}}")
    path.write_bytes(content)
progress, _, passed_over = checkpoint.restore(folder / "checkpoints", module, optimizer, "run")
assert progress.step == 2 and not passed_over, "mended, it is taken again"
(folder / "found.json").write_text(json.dumps([failures, kinds, [path.name for path in files]]))
os._exit(0)
"""


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Spoil the newest of two checkpoints `count` times, in whichever of its files."""
    folder = ground.fresh("spoilt")
    folder.mkdir()
    ground.nursery.run([], code=_SPOIL.format(folder=str(folder), count=count, seed=seed))
    failures, kinds, files = json.loads((folder / "found.json").read_text())
    counts = ", ".join(f"{number} × {kind}" for kind, number in kinds.items())
    return Found(
        "bit flips and truncations in a checkpoint", "all caught; falls back by one interval", count, failures,
        [counts, f"in any of {', '.join(files)}"],
    )  # fmt: skip
