"""NaN and Inf in loss, gradient or activation: no weight and no moment changes, the batch is named, the run goes on."""

from __future__ import annotations

import json

from .report import Found
from .subjects import Ground

# Lays the trap in the child: every other step is poisoned, and weights and optimizer are compared around it.
_TRAP = """
import json, hashlib, pathlib, random, torch
from headstart.training import loop as loops
from headstart.training.module import LossModule
folder, chance = pathlib.Path({folder!r}), random.Random({seed})
VALUES = float("nan"), float("inf"), -float("inf")
KINDS = [(where, value) for where in ("loss", "gradient", "activation") for value in VALUES]
told = {{"poisoned": [], "changed": []}}
now = {{"poison": None}}

def digest(loop):
    found = hashlib.sha256()
    for parameter in loop.learner.module.parameters():
        found.update(parameter.detach().numpy().tobytes())
        for value in loop.optimizer.state.get(parameter, {{}}).values():
            found.update(value.numpy().tobytes())
    return found.hexdigest()

step = loops.Loop._step
def poisoned(self, micro_batches):
    # The first update makes the moments, which are to stay as they are.
    if self.progress.step % 2 == 1 and len(told["poisoned"]) < {count}:
        now["poison"] = KINDS[len(told["poisoned"]) % len(KINDS)]
        now["micro"] = chance.randrange(len(micro_batches))
    before, seen["calls"] = digest(self), 0
    hooks = lay(self)
    result = step(self, micro_batches)
    for hook in hooks:
        hook.remove()
    if now["poison"]:
        told["poisoned"].append([self.progress.step, *map(str, now["poison"])])
        if digest(self) != before:
            told["changed"].append(self.progress.step)
        now["poison"] = None
    (folder / "told.json").write_text(json.dumps(told))
    return result
loops.Loop._step = poisoned

seen = {{"calls": 0}}
forward = LossModule.forward
def spoilt(self, batch):
    loss = forward(self, batch)
    if self.training:
        seen["calls"] += 1
        if now["poison"] and now["poison"][0] == "loss" and seen["calls"] - 1 == now["micro"]:
            loss = loss + now["poison"][1]
    return loss
LossModule.forward = spoilt

def lay(loop):
    if not now["poison"]:
        return []
    where, value = now["poison"]
    parameters = [p for p in loop.learner.module.parameters() if p.ndim == 2]
    if where == "gradient":
        return [chance.choice(parameters).register_hook(lambda gradient: gradient + value)]
    if where == "activation":
        layers = [m for m in loop.learner.module.modules() if isinstance(m, torch.nn.Linear)]
        def hook(module, inputs, output):
            output = output.clone()
            output.view(-1)[0] = value
            return output
        return [chance.choice(layers[:-1]).register_forward_hook(hook)]
    return []
"""


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Poison `count` steps of one run, every other one."""
    steps = 2 * count + 8
    folder, notes = ground.fresh("poisoned"), ground.fresh("poison")
    notes.mkdir()
    # The warm-up is short, so that a good step between two bad ones moves the weights.
    settings = (f"training.budget={steps} steps", "training.seq_length=32", "training.save_interval_minutes=100")
    command = ground.command("masked_lm", folder, *settings)
    ground.nursery.run(command, code=_TRAP.format(folder=str(notes), seed=seed, count=count))
    told = json.loads((notes / "told.json").read_text())
    found = Found("NaN or Inf in loss, gradient or activation", "weights untouched; run goes on; batch named", count)
    found.failures = [f"step {step} changed weights or moments" for step in told["changed"]]
    if len(told["poisoned"]) != count:
        found.failures.append(f"{len(told['poisoned'])} steps were poisoned, not {count}")
    lines = [json.loads(line) for line in (folder / "logs" / "quarantine.jsonl").read_text().splitlines()]
    named = {line["step"]: line["samples"] for line in lines}
    poisoned = {step for step, *_ in told["poisoned"]}
    found.failures += [f"step {step} is not in quarantine" for step in poisoned if not named.get(step)]
    found.failures += [f"step {step} is in quarantine and was not poisoned" for step in named if step not in poisoned]
    found.notes = [f"one run of {steps} steps", "loss, gradient and activation in turn, each with NaN, Inf and -Inf"]
    return found
