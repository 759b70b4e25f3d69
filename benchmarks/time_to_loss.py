"""Time until Headstart reaches the held-out masked-LM loss of Trainer (run_mlm's setup) after a number of minutes.

Trainer gets a BERT with the same number of parameters, rows from the whole corpus, the same batch size, the machine's
fastest format, a warm-up and learning rates that suit the size (run_mlm's 5e-5 would barely get below the unigram
loss). Each rate is a complete run, and the best one counts. Headstart runs `headstart pretrain` with the recipe, with a
third of the time at first, and with more if the loss is not reached. Its time includes counting for the warm start,
compilation and validation. Reading and tokenizing the corpus are in neither time. Both are evaluated on the same
held-out rows and masks, and run at the same time on half of the cores each, so that other work affects both.

Finished parts are saved in the folder `--work`, so that the script can be interrupted and restarted at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretraining import Ours
from side_by_side import number_format, report
from trainers import Rows, choose_attention, quiet
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from headstart.core import artifact
from headstart.core.data import Sample
from headstart.stages.pretrain.learner import PretrainLearner
from headstart.stages.pretrain.warm_start import warm_start
from headstart.stages.runs import environment
from headstart.training import precision
from headstart.training.jsonl import read_jsonl

RECIPE = "recipes/objectives/mini.yaml"
SHARES = (1 / 3, 0.4, 0.5, 2 / 3, 1.0)
"""Fractions of Trainer's time for Headstart, one run each, until Trainer's loss is reached."""


class Clock(TrainerCallback):
    """Records when training started and when each step ended."""

    def __init__(self) -> None:
        """Start without records."""
        self.marks: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record the start."""
        self.marks = [time.perf_counter()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the time."""
        self.marks.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the end of the last step."""
        return self.marks[-1] - self.marks[0]

    @property
    def usual_step(self) -> float:
        """Return the median duration of a step in the second half, when caches are warm."""
        steps = [after - before for before, after in pairwise(self.marks)]
        return statistics.median(steps[len(steps) // 2 :])


class Theirs:
    """transformers' Trainer on the same packed rows as Headstart."""

    def __init__(self, rate: float, quick: bool) -> None:
        """Set up a BERT of the recipe's size and the rows."""
        self.ours, self.rate = Ours("backbone.kind=bert", recipe=RECIPE), rate
        count = 256 if quick else min(200_000, len(self.ours.rows))
        # Rows from the whole corpus: its first rows are novels, and Headstart trains on rows in random order.
        spread = np.linspace(0, len(self.ours.rows) - 1, count).astype(int).tolist()
        self.rows = Rows(self.ours.rows.rows([Sample(0, index) for index in spread]).ids, self.ours.tokenizer)
        self.collator = DataCollatorForLanguageModeling(self.ours.tokenizer, mlm_probability=0.15)
        tried, steps = AutoModelForMaskedLM.from_config(self.ours.model.config), 2 if quick else 8
        self.attention = choose_attention(tried, self.rows, self.collator, self.ours.batch_size, steps, number_format())

    def train(self, steps: int) -> tuple[torch.nn.Module, Clock]:
        """Train a new network for `steps` steps with a complete schedule; return it and its clock."""
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_config(self.ours.model.config, attn_implementation=self.attention)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                output_dir=folder, per_device_train_batch_size=self.ours.batch_size, max_steps=steps,
                bf16=number_format() == "bf16", use_cpu=not torch.cuda.is_available(), report_to=[],
                save_strategy="no", logging_steps=50, disable_tqdm=True, learning_rate=self.rate,
                warmup_steps=round(0.06 * steps), weight_decay=0.01,
            )  # fmt: skip
            trainer = Trainer(
                model=model, args=settings, train_dataset=self.rows, data_collator=self.collator, callbacks=[clock]
            )
            trainer.model_accepts_loss_kwargs = False
            quiet(trainer).train()
        return model, clock

    def loss(self, model: torch.nn.Module) -> float:
        """Return the loss of a network on the held-out rows with Headstart's fixed masks."""
        ours = self.ours
        held_out = ours.held_out
        learner = PretrainLearner(model, ours.objective, held_out, held_out, ours.vocabulary, ours.recipe.seed)
        with precision.autocast(number_format(), torch.device("cpu")):
            return learner.validate()["loss"]


def their_loss(minutes: float, rate: float, quick: bool) -> dict[str, Any]:
    """Time a few steps, train the number of steps that fits into the minutes, and evaluate."""
    theirs = Theirs(rate, quick)
    some = 4 if quick else 20
    _, clock = theirs.train(some)
    steps = max(some, round(60 * minutes / clock.usual_step))
    model, clock = theirs.train(steps)
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "loss": theirs.loss(model), "seconds": clock.seconds, "steps": steps, "parameters": parameters,
        "attention": theirs.attention,
    }  # fmt: skip


def counting() -> float:
    """Return the seconds of counting for the warm start, which a prepared folder would hide."""
    ours = Ours(recipe=RECIPE)
    if ours.recipe.warm_start is None:
        return 0.0
    with tempfile.TemporaryDirectory() as home:
        start = time.perf_counter()
        warm_start(ours.recipe.warm_start, ours.module, ours.objective, ours.prepared, Path(home))
        return time.perf_counter() - start


def our_seconds(target: float, budget: float, output: Path) -> tuple[float | None, float]:
    """Return the seconds after which a run of `budget` seconds reached the loss, or None, and its last loss.

    Losses are logged between lines with the fraction of the budget that is spent; the next such line counts.
    """
    last, reached = float("inf"), None
    for line in read_jsonl(output / "logs" / "metrics.jsonl"):
        if reached is None and last <= target and "share" in line:
            reached = budget * line["share"]
        last = line.get("validation/loss", last)
    return (budget if reached is None and last <= target else reached), last


def train(budget: float, output: Path) -> None:
    """Train with the recipe for `budget` seconds."""
    command = ["pretrain", RECIPE, f"output={output}", f"training.budget={budget:.1f} s", "training.eval_count=10"]
    # Use an empty cache: compiled code of earlier runs would hide the compilation time.
    cold = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(output.with_name(f"{output.name}.compiled"))}
    subprocess.run([sys.executable, "-m", "headstart", *command], check=True, env=cold)


def _parameters(work: Path) -> int:
    """Return the number of parameters of Headstart's network, from the last finished run."""
    last = max(work.glob("ours-*/headstart.json"), key=lambda path: path.stat().st_mtime)
    return int(json.loads(last.read_text(encoding="utf-8"))["parameters"])


def kept(file: Path, measure: Callable[[], Any]) -> Any:
    """Return the content of a file; if it does not exist, measure and write it first."""
    if not file.is_file():
        artifact.write_whole(file, json.dumps(measure(), indent=1))
    return json.loads(file.read_text(encoding="utf-8"))


def their_file(work: Path, rate: float) -> Path:
    """Return the file with Trainer's result at a learning rate."""
    return work / f"theirs-{rate:g}.json"


def trainer_side(work: Path, rates: Sequence[float], minutes: float, quick: bool) -> None:
    """Run Trainer at each learning rate that has no result yet."""
    for rate in rates:
        kept(their_file(work, rate), partial(their_loss, minutes, rate, quick))


def main() -> None:
    """Measure both and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0, help="Trainer's time")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4], help="Trainer's learning rates, one run each")
    parser.add_argument("--work", type=Path, default=Path("runs/time-to-loss"), help="folder of finished parts")
    parser.add_argument("--repetitions", type=int, default=1, help="ignored; there is one run")
    parser.add_argument("--side", action="store_true", help="run only Trainer; used by the script itself")
    parser.add_argument("--quick", action="store_true", help="do as little work as possible, as a test")
    options = parser.parse_args()
    environment.restart()
    if options.quick:
        options.minutes = 0.3
        options.work = options.work if options.side else Path(tempfile.mkdtemp())
    work = options.work / f"{options.minutes:g}-min-{number_format()}"
    work.mkdir(parents=True, exist_ok=True)
    if options.side:
        return trainer_side(work, options.rates, options.minutes, options.quick)
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    # A child process inherits the cores that are set when it starts.
    os.sched_setaffinity(0, cores[-half:])
    trainer = subprocess.Popen([sys.executable, *sys.argv, "--side", "--work", str(options.work)])
    os.sched_setaffinity(0, cores[:half])
    torch.set_num_threads(half)
    try:
        counted = kept(work / "counting.json", lambda: 0.0 if options.quick else counting())
        attempts = {share: (60 * options.minutes * share - counted, work / f"ours-{share:.2f}") for share in SHARES}
        for attempt in attempts.values():
            # Train as long as Trainer runs, so that it never has the machine to itself.
            if all(their_file(work, rate).is_file() for rate in options.rates):
                break
            train(*attempt)
        if trainer.wait():
            raise SystemExit("Trainer failed")
    finally:
        trainer.terminate()
    runs = {rate: json.loads(their_file(work, rate).read_text(encoding="utf-8")) for rate in options.rates}
    best = min(runs.values(), key=lambda run: run["loss"])
    # The number of steps assumes the usual speed; a slowdown by other work does not count against Trainer.
    target, theirs = best["loss"], min(best["seconds"], 60 * options.minutes)
    tried, reached = {}, None
    for share, (budget, output) in attempts.items():
        train(budget, output)
        reached, tried[f"{60 * options.minutes * share:.0f} s"] = our_seconds(target, budget, output)
        if reached is not None or options.quick:
            break
    # If the loss was not reached, the time is unknown and longer than Trainer's.
    ours = float("inf") if reached is None else reached + counted
    report(
        f"time to the loss of Trainer after {options.minutes:g} min, mini encoder", [ours], [theirs], 3.0, "s",
        less_is_better=True, loss=round(target, 4), reached=reached is not None, our_losses=tried,
        counting=round(counted, 1), cores_each=half,
        their_losses={f"{rate:g}": run["loss"] for rate, run in runs.items()},
        their_steps=best["steps"], their_seconds=round(best["seconds"], 1), their_attention=best["attention"],
        their_parameters=best["parameters"], our_parameters=_parameters(work),
    )  # fmt: skip


if __name__ == "__main__":
    main()
