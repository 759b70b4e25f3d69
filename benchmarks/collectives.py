"""Bytes of each collective in a training step and state of each process, counted on gloo and compared with a model.

The model is `scaling_model.py`, which computes the tables of docs/scaling.md. A collective is counted when it enters
the process group, by the size of the whole tensor. How often gloo's algorithms send the tensor is not counted.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import scaling_model
import torch
from side_by_side import agree, arguments
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from headstart.core import config
from headstart.stages.plan import synthetic
from headstart.stages.pretrain.build import build_model, objective_of, tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.callbacks import Callback
from headstart.training.loop import Loop, RunInfo, StepResult
from headstart.training.phases import Phase
from headstart.training.world import joined

RECIPE = "recipes/objectives/mini.yaml"
CHANGES = ("tokenizer.vocab_size=4096", "training.batch_tokens=1024", "training.torch_compile=false",
           "training.optim=adamw", "training.eval_count=0", "training.logging_steps=1",
           "training.budget=4 steps")  # fmt: skip
ROWS = 8
"""Rows per update."""
STEPS = 4
"""The step to count: DDP has rebuilt its buckets by then."""
KINDS = {
    "c10d.allreduce_": "all_reduce",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
}
SMALL = 4096
"""Collectives up to this size in bytes are control messages (losses, clocks, which parameters were used)."""


class Counted(TorchDispatchMode):
    """Counts the bytes of every collective, including those that DDP starts in C++."""

    def __init__(self) -> None:
        """Start with zero counts."""
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operation if it is a collective, then run it."""
        name = str(func).removesuffix(".default")
        if name.startswith("c10d."):
            size = max(_bytes(part) for part in args)
            self.bytes["words" if size <= SMALL else KINDS.get(name, name)] += size
        return func(*args, **(kwargs or {}))


def _bytes(part: Any) -> int:
    if isinstance(part, torch.Tensor):
        return part.numel() * part.element_size()
    return sum(map(_bytes, part)) if isinstance(part, list | tuple) else 0


class Watch(Callback):
    """Copies the counts after every step, and sums the bytes of weights and moments in this process."""

    def __init__(self, counted: Counted) -> None:
        """Store the counter."""
        self.counted = counted
        self.after: dict[int, Counter[str]] = {}
        self.held = 0

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Copy the counts, and sum the bytes of weights and moments."""
        self.after[loop.progress.step] = Counter(self.counted.bytes)
        kept = list(loop.learner.module.parameters())
        kept += [v for moments in loop.optimizer.state.values() for v in moments.values() if v.numel() > 1]
        self.held = sum(_bytes(t.to_local() if isinstance(t, DTensor) else t) for t in kept)


def worker(parallel: str, micro: str) -> None:
    """Train as one of several processes, and print the bytes of its collectives and of its state."""
    changes = [*CHANGES, f"training.parallel={parallel}", f"training.micro_batch_size={micro}"]
    recipe: Any = config.load(RECIPE, PretrainRecipe, changes)
    objective = objective_of(recipe)
    vocabulary = synthetic.vocabulary_of(tokenizer_of(recipe), objective.special_tokens())
    length = recipe.training.phases[0].length
    noise = [CorpusRows("", 1.0, synthetic.NoiseRows(vocabulary, objective.row_shape(length)))]
    with joined() as world, tempfile.TemporaryDirectory() as home:
        learner = PretrainLearner(build_model(recipe, vocabulary, objective), objective, noise, noise, vocabulary, 0)
        inside = sum(p.numel() for name, p in learner.module.named_parameters() if ".layers." in name)
        whole = sum(p.numel() for p in learner.module.parameters())
        phases = [Phase(0.0, learner, recipe.training.rows_of(length))]
        watch = Watch(Counted())
        loop = Loop(learner, recipe.training, RunInfo(Path(home), ""), phases, callbacks=[watch], world=world)
        with watch.counted:
            loop.run()
        step = watch.after[STEPS] - watch.after[STEPS - 1]
    print(json.dumps({"bytes": step, "held": watch.held, "inside": inside, "outside": whole - inside}), flush=True)


def together(parallel: str, processes: int, passes: int) -> dict[str, Any]:
    """Start `processes` processes with `passes` passes per step, and return the counts of rank 0."""
    micro = ROWS // processes // passes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", parallel, str(micro)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{parallel} in {processes} processes failed")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    """Count for one, two and four processes with DDP and FSDP2; print one line of JSON for each count."""
    if "--worker" in sys.argv:
        worker(*sys.argv[-2:])
        return
    options = arguments(__doc__ or "", repetitions=1)
    for processes, passes in ((2, 1),) if options.quick else ((1, 1), (2, 1), (2, 2), (4, 1)):
        for parallel in ("ddp", "fsdp"):
            found = together(parallel, processes, passes)
            network = scaling_model.Network(1, found["inside"], found["outside"], 0, 0, 0)
            spread = f"{processes} process{'es' * (processes > 1)}{', two passes' * (passes > 1)}"
            where = f"{parallel}, {spread}, against the model"
            asked = scaling_model.payload(network, parallel, passes).items() if processes > 1 else ()
            for kind, size in asked:
                agree(f"bytes of {kind} a step, {where}", found["bytes"].get(kind, 0), size, 0.98, "bytes",
                      all_counted=found["bytes"])  # fmt: skip
            if processes == 1:
                agree(f"bytes of all collectives a step, {where}", sum(found["bytes"].values()), 0, 0.98, "bytes")
            state = 0.75 * scaling_model.state(network, parallel, processes)
            agree(f"weights and moments in a process, {where}", found["held"], state, 0.98, "bytes")


if __name__ == "__main__":
    main()
