"""A learner that trains in milliseconds, with everything that makes a resume hard."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings as hypothesis_settings

from headstart.core.data import ParameterGroup, Sample
from headstart.core.randomness import generator
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.jsonl import read_jsonl
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings
from headstart.training.trackers.metrics_file import MetricsFileCallback

# No deadline per example: a busy machine is not a fault of the code. The timeout of the suite limits the time.
hypothesis_settings.register_profile("unhurried", deadline=None, max_examples=60)
hypothesis_settings.load_profile("unhurried")

VOCABULARY, WIDTH, LENGTH = 20, 16, 6


class Net(torch.nn.Module):
    """Predicts each token from the one before: dropout, a norm, and an output layer tied to the embedding."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.dropout = torch.nn.Dropout(dropout)
        self.output = torch.nn.Linear(WIDTH, VOCABULARY)
        self.output.weight = self.embedding.weight
        self.idle = torch.nn.Parameter(torch.ones(3))

    def forward(self, batch):
        ids, weights = batch["ids"], batch["weights"]
        states = self.norm(self.dropout(torch.tanh(self.hidden(self.embedding(ids[:, :-1])))))
        losses = F.cross_entropy(self.output(states).flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return (losses.view(len(ids), -1) * weights).sum() + batch["poison"].sum()


class ToyLearner:
    """Rows of tokens from each sample's own generator; `poisoned` epochs have a NaN loss."""

    def __init__(
        self, size: int = 20, dropout: float = 0.3, lengths: Sequence[int] | None = None, poisoned: Sequence[int] = (),
        length: int = LENGTH,
    ) -> None:  # fmt: skip
        self.module = Net(dropout)
        self.size, self.lengths, self.poisoned = size, lengths, poisoned
        self.parts, self.length = (), length
        self.scores: list[float] | None = None
        self.on_tokens = None

    def __len__(self) -> int:
        return self.size

    def batch(self, samples: Sequence[Sample]):
        rows, weights = [], []
        for sample in samples:
            rng = generator(3, sample.epoch, sample.index, "toy")
            start, stride = rng.integers(0, VOCABULARY), 1 + sample.index % 3
            rows.append([(int(start) + stride * i) % VOCABULARY for i in range(self.length)])
            weights.append((rng.random(self.length - 1) < 0.7).astype("float32").tolist())
        poison = [float("nan") if sample.epoch in self.poisoned else 0.0 for sample in samples]
        return {"ids": torch.tensor(rows), "weights": torch.tensor(weights), "poison": torch.tensor(poison)}

    def weight(self, batch) -> float:
        return float(batch["weights"].sum())

    def tokens(self, batch) -> int:
        if self.on_tokens:
            self.on_tokens()
        return batch["ids"].numel()

    def parameter_groups(self) -> list[ParameterGroup]:
        return [ParameterGroup(tuple(name for name, _ in self.module.named_parameters()))]

    def validate(self) -> dict[str, float]:
        if self.scores is not None:
            return {"score": self.scores.pop(0)}
        self.module.eval()
        with torch.no_grad():
            batch = self.batch([Sample(99, index) for index in range(8)])
            return {"score": -float(self.module(batch)) / self.weight(batch)}


def settings(**given) -> TrainingSettings:
    base = {"budget": "12 steps", "learning_rate": 0.02, "precision": "fp32", "logging_steps": 1, "eval_count": 3}
    return TrainingSettings(**{**base, "save_interval_minutes": 1e9, "micro_batch_size": 3, **given})


def loop_of(
    folder: Path, learner: ToyLearner, *callbacks: Callback, keep_best: bool = False, fingerprint: str = "f",
    later=(), world=None, **given,
) -> Loop:  # fmt: skip
    """Return a loop with the default callbacks and some more."""
    filled = settings(**given)
    return Loop(
        learner, filled, RunInfo(folder, fingerprint, seed=5), [Phase(0.0, learner, 8, 2.0), *later],
        callbacks=[*default_callbacks(filled, keep_best), *callbacks], world=world,
    )  # fmt: skip


class At(Callback):
    """Calls a function when a training step is logged."""

    def __init__(self, step: int, action) -> None:
        self.step, self.action = step, action

    def on_log(self, loop: Loop, values) -> None:
        if loop.progress.step == self.step and "loss" in values:
            self.action()


class StopAfter(Callback):
    """Ends a run after some steps, without a checkpoint."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_begin(self, loop: Loop) -> None:
        self.last = loop.progress.step + self.steps
        loop.should_stop = self.steps == 0

    def on_step_end(self, loop: Loop, result) -> None:
        loop.should_stop |= loop.progress.step >= self.last


def train(folder: Path, learner: ToyLearner, *callbacks: Callback, **given):
    """Restore and run, with metrics.jsonl as the stages write it."""
    loop = loop_of(folder, learner, MetricsFileCallback(), *callbacks, **given)
    loop.restore()
    return loop, loop.run()


def curve(folder: Path) -> list[tuple]:
    """Return everything in metrics.jsonl that does not depend on the clock."""
    lines = read_jsonl(folder / "logs" / "metrics.jsonl")
    return [tuple((k, v) for k, v in line.items() if k != "tokens_per_second") for line in lines]


def weights(learner: ToyLearner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.module.state_dict().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), f"{name} differs by {(value.double() - b[name].double()).abs().max()}"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    return SimpleNamespace(
        Learner=ToyLearner, settings=settings, loop=loop_of, train=train, At=At, StopAfter=StopAfter, curve=curve,
        weights=weights, assert_same=assert_same, source=Path(__file__), python=sys.executable,
    )  # fmt: skip
