"""Peak memory of a process that starts a sharded run: the network built whole first, and computed shard by shard."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from side_by_side import arguments, report

from headstart.core import config
from headstart.stages.plan import synthetic
from headstart.stages.pretrain.build import build_model, build_sharded, objective_of, tokenizer_of
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.sharding import Sharded
from headstart.training.world import World, joined

RECIPE = "recipes/objectives/mini.yaml"
CHANGES = ("warm_start=null", "tokenizer.vocab_size=4096", "training.parallel=fsdp", "objective=causal_lm",
           "backbone={family: decoder, kind: llama, size: small, layers: 16}")  # fmt: skip
QUICK = ("backbone={family: decoder, kind: llama, size: tiny}",)
PROCESSES = 4


def worker(way: str, *changes: str) -> None:
    """Build and shard as one of several processes, and print the peak of what this took, in MB."""
    with joined() as world:
        # A tiny network first: what the libraries allocate for it is not counted.
        started(way, world, QUICK)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        module = started(way, world, changes)
        peak = _status("VmHWM") - before
        size = sum(p.numel() for p in module.parameters())
        sums = [float(p.full_tensor().detach().double().sum()) for p in module.parameters()]  # type: ignore[attr-defined]
    print(json.dumps({"peak": peak, "weights": size * 4 / 1e6, "sums": sums}), flush=True)


def started(way: str, world: World, changes: Sequence[str]) -> torch.nn.Module:
    """Build a network and shard it."""
    recipe: Any = config.load(RECIPE, PretrainRecipe, [*CHANGES, *changes])
    objective = objective_of(recipe)
    vocabulary = synthetic.vocabulary_of(tokenizer_of(recipe), objective.special_tokens())
    if way == "whole":
        module = build_model(recipe, vocabulary, objective)
    else:
        module = build_sharded(recipe, vocabulary, objective, lambda module: None)
    Sharded(module, world, recipe.training, torch.device("cpu"))
    return module


def _status(name: str) -> float:
    line = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert line is not None
    return int(line[1]) / 1000


def together(way: str, *changes: str) -> dict[str, Any]:
    """Start the processes, and return what rank 0 found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(PROCESSES), "LOCAL_WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", way, *changes], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(PROCESSES)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{way} in {PROCESSES} processes failed")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    """Measure both ways, and print one line of JSON."""
    if "--worker" in sys.argv:
        worker(*sys.argv[sys.argv.index("--worker") + 1 :])
        return
    options = arguments(__doc__ or "", repetitions=1)
    changes = QUICK if options.quick else ()
    whole, sharded = together("whole", *changes), together("sharded", *changes)
    report(
        f"peak memory of one of {PROCESSES} processes at the start of FSDP, built whole first", [sharded["peak"]],
        [whole["peak"]], 2.0, "MB", less_is_better=True, weights=round(whole["weights"]),
        same_weights=sharded["sums"] == whole["sums"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
