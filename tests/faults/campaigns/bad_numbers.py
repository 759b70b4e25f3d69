"""NaN and Inf in loss, gradient or activation: no weights change, the batch is recorded, and the run continues."""

from __future__ import annotations

import json

from .report import Found
from .subjects import Ground

# Runs in the child: every other step is poisoned, and weights and optimizer state are compared before and after it.
_TRAP = """
import json, hashlib, pathlib, random, torch
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop
from headstart.training.module import LossModule
folder, rng = pathlib.Path({folder!r}), random.Random({seed})
VALUES = float("nan"), float("inf"), -float("inf")
KINDS = [(where, value) for where in ("loss", "gradient", "activation") for value in VALUES]
result = {{"poisoned": [], "changed": []}}
now = {{"poison": None}}
seen = {{"calls": 0}}

def digest(loop):
    content = hashlib.sha256()
    for parameter in loop.learner.module.parameters():
        content.update(parameter.detach().numpy().tobytes())
        for value in loop.optimizer.state.get(parameter, {{}}).values():
            content.update(value.numpy().tobytes())
    return content.hexdigest()

class Trap(Callback):
    def on_train_begin(self, loop):
        gradients = loop.train_step.gradients
        def poisoned(micro_batches, *more):
            # The first step creates the moments, which must not change afterwards.
            if loop.progress.step % 2 == 1 and len(result["poisoned"]) < {count}:
                now["poison"] = KINDS[len(result["poisoned"]) % len(KINDS)]
                now["micro"] = rng.randrange(len(micro_batches))
            self.before, seen["calls"] = digest(loop), 0
            self.hooks = set_hooks(loop)
            return gradients(micro_batches, *more)
        loop.train_step.gradients = poisoned

    def on_step_end(self, loop, _):
        for hook in self.hooks:
            hook.remove()
        if now["poison"]:
            result["poisoned"].append([loop.progress.step, *map(str, now["poison"])])
            if digest(loop) != self.before:
                result["changed"].append(loop.progress.step)
            now["poison"] = None
        (folder / "result.json").write_text(json.dumps(result))

run = Loop.run
def trapped(loop):
    # First, so that evaluations run without the hooks.
    loop.callbacks.insert(0, Trap())
    return run(loop)
Loop.run = trapped

forward = LossModule.forward
def poisoned_forward(self, batch):
    loss = forward(self, batch)
    if self.training:
        seen["calls"] += 1
        if now["poison"] and now["poison"][0] == "loss" and seen["calls"] - 1 == now["micro"]:
            loss = loss + now["poison"][1]
    return loss
LossModule.forward = poisoned_forward

def set_hooks(loop):
    if not now["poison"]:
        return []
    where, value = now["poison"]
    parameters = [p for p in loop.learner.module.parameters() if p.ndim == 2]
    if where == "gradient":
        return [rng.choice(parameters).register_hook(lambda gradient: gradient + value)]
    if where == "activation":
        layers = [m for m in loop.learner.module.modules() if isinstance(m, torch.nn.Linear)]
        def hook(module, inputs, output):
            output = output.clone()
            output.view(-1)[0] = value
            return output
        return [rng.choice(layers[:-1]).register_forward_hook(hook)]
    return []
"""


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Poison every other step of one run, `count` steps in all."""
    steps = 2 * count + 8
    folder, notes = ground.fresh("poisoned"), ground.fresh("poison")
    notes.mkdir()
    # The warmup is short, so that a good step between two bad ones changes the weights.
    settings = (f"training.budget={steps} steps", "training.seq_length=32", "training.save_interval_minutes=100")
    command = ground.command("masked_lm", folder, *settings)
    ground.nursery.run(command, code=_TRAP.format(folder=str(notes), seed=seed, count=count))
    result = json.loads((notes / "result.json").read_text())
    found = Found(
        "NaN or Inf in loss, gradient or activation", "no weights change; run continues; batch recorded", count
    )
    found.failures = [f"step {step} changed weights or moments" for step in result["changed"]]
    if len(result["poisoned"]) != count:
        found.failures.append(f"{len(result['poisoned'])} steps were poisoned, not {count}")
    lines = [json.loads(line) for line in (folder / "logs" / "quarantine.jsonl").read_text().splitlines()]
    recorded = {line["step"]: line["samples"] for line in lines}
    poisoned = {step for step, *_ in result["poisoned"]}
    found.failures += [f"step {step} is not in quarantine" for step in poisoned if not recorded.get(step)]
    found.failures += [
        f"step {step} is in quarantine but was not poisoned" for step in recorded if step not in poisoned
    ]
    found.notes = [f"one run of {steps} steps", "loss, gradient and activation in turn, each with NaN, Inf and -Inf"]
    return found
