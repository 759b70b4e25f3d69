"""Shared by the pre-training benchmarks: Headstart's loop over the prepared shards, a few steps at a time."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headstart.core import config
from headstart.core.data import Sample
from headstart.stages.pretrain.build import build_model, objective_of, tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, shuffle_of
from headstart.stages.pretrain.prepare import Prepared, prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens import tokenizer
from headstart.tokens.rows import cut
from headstart.tokens.shards import Shards
from headstart.training.budget import Budget
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase

CAUSAL_LM = ("objective={name: causal_lm}", "backbone={family: decoder, size: small, dropout: 0.0}",
             "training.optim=adamw")  # fmt: skip
SPAN_CORRUPTION = ("objective={name: span_corruption}",
                   "backbone={family: encoder-decoder, kind: t5, size: small, dropout: 0.0}",
                   "training.optim=adamw")  # fmt: skip
"""Overrides that turn the mini encoder into the other two networks compared with Trainer, with Trainer's optimizer."""
TURN_SECONDS, MOST_STEPS = 15.0, 12
"""Duration and maximum steps of a repetition; a slow machine or a larger network runs fewer steps."""


def prepared_of(recipe: Any) -> Prepared:
    """Return the tokenizer and the tokens of a recipe; they are computed if they do not exist."""
    return prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, Path(tempfile.mkdtemp()), quiet=True)


class Unmeasured(PretrainLearner):
    """A learner without validation, which is not part of a step."""

    def validate(self, limit: int = 0) -> dict[str, float]:
        """Return no metrics."""
        return {}


class Ours:
    """Headstart's loop, run a few steps at a time."""

    def __init__(self, *overrides: str, recipe: str = "recipes/objectives/mini.yaml") -> None:
        """Set up model, rows and loop from a recipe."""
        filled: Any = config.load(recipe, PretrainRecipe, ["training.eval_count=0", *overrides])
        self.recipe = filled
        self.objective = objective_of(filled)
        prepared = prepared_of(filled)
        self.tokenizer = prepared.tokenizer
        vocabulary = tokenizer.add_special(prepared.tokenizer, self.objective.special_tokens())
        self.vocabulary = replace(vocabulary, pieces=prepared.vocabulary.pieces)
        self.length = filled.training.phases[0].length
        self.prepared, shape = prepared, self.objective.row_shape(self.length)
        train = self.opened(prepared.corpora[0].train)
        self.rows = cut(train, self.vocabulary, shape)
        shuffle = shuffle_of(filled.training, train.tokens / len(self.rows))
        corpora = [CorpusRows("", 1.0, self.rows, train.is_remote, shuffle)]
        self.held_out = [CorpusRows("", 1.0, cut(prepared.corpora[0].validation, self.vocabulary, shape))]
        self.module = build_model(filled, self.vocabulary, self.objective)
        self.model = self.objective.parts(self.module)[""]
        self.learner = Unmeasured(self.module, self.objective, corpora, corpora, self.vocabulary, filled.seed)
        self.batch_size = filled.training.rows_of(self.length)
        info, phases = RunInfo(Path(tempfile.mkdtemp()), "x", filled.seed), [Phase(0.0, self.learner, self.batch_size)]
        self.loop = Loop(self.learner, filled.training, info, phases)
        self.steps = 0

    def opened(self, shards: Shards) -> Shards:
        """Return the shards to train on; a script may read the same ones from elsewhere."""
        return shards

    def tokens_per_second(self, steps: int) -> float:
        """Train `steps` more steps and return tokens per second."""
        self.steps += steps
        self.loop.budget = Budget.parse(f"{self.steps} steps").in_steps(self.batch_size, len(self.learner))
        before, start = self.loop.progress.tokens, time.perf_counter()
        self.loop.run()
        return (self.loop.progress.tokens - before) / (time.perf_counter() - start)

    def warm_up(self, quick: bool = False) -> int:
        """Compile and warm up caches; return the number of steps per repetition."""
        self.tokens_per_second(3)
        if quick:
            return 2
        before = self.loop.progress.tokens
        rate = self.tokens_per_second(2)
        return max(2, min(MOST_STEPS, round(TURN_SECONDS * rate / ((self.loop.progress.tokens - before) / 2))))

    def batches(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return `count` prepared batches."""
        size = self.batch_size
        return [dict(self.learner.batch([Sample(0, n * size + i) for i in range(size)])) for n in range(count)]
