"""The price tag before anything is spent: a few steps are timed here, the rest is arithmetic."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from headstart.core import registry
from headstart.core.contracts import Adaptation, BatchSource, Objective, Task
from headstart.core.data import Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.corpus.read import mixture, readers
from headstart.evaluation.cost import PriceTag, forecast_tag
from headstart.stages.finetune.cell import TaskLearner, loop_of, trainable
from headstart.stages.finetune.cell import size as size_of
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.finetune.run import applicable_methods, read_data
from headstart.stages.plan import synthetic
from headstart.stages.plan.trial import STEPS, Trial, timed
from headstart.stages.pretrain.build import build_model, objective_of, tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, RowBatches
from headstart.stages.pretrain.recipe import PretrainRecipe, PretrainTraining
from headstart.stages.pretrain.reopen import Pretraining
from headstart.stages.runs.flops import flops_per_token
from headstart.tasks.source import CheckpointFolder
from headstart.training.budget import Budget
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop
from headstart.training.phases import Phase, growing

_COUNTED_ROWS = 8
"""Rows on which FLOPs are counted: several, since a mixture treats them differently."""
QUIET = 0.8
"""The share of its cores' time below which a forecast says that others had the rest."""
_BYTES_PER_TOKEN = 4.4
"""English Wikipedia and novels under WordPiece of 16k: 386.2 MB gave 87.5 M tokens. Other text differs."""


def run(recipe: Any) -> dict[str, Any]:
    """Forecast a filled recipe of `pretrain` or `finetune`: its size, the speed measured here and its cost."""
    if isinstance(recipe, PretrainRecipe):
        return _pretrain(recipe)
    if isinstance(recipe, FinetuneRecipe):
        return _finetune(recipe)
    raise RecipeError(f"this is a recipe of `headstart {recipe.verb}`", allowed="`headstart plan` forecasts training")


def render(found: dict[str, Any]) -> str:
    """Say the forecast in lines."""
    tag = PriceTag.from_dict(found["forecast"])
    lines = [
        f"{key:<22}{value:,}" if isinstance(value, int | float) else f"{key:<22}{value}"
        for key, value in found["size"].items()
    ]
    speed, cores = found["tokens_per_second"], found["cores"]
    lines.append(f"{'speed here':<22}{speed:,.0f} tokens a second, {STEPS} steps of the run's own loop timed")
    if cores < QUIET:
        lines.append(
            f"{'busy machine':<22}this process had {cores:.0%} of its cores' time; alone, it would take "
            f"{cores:.2g} × as long"
        )
    lines.append(f"{'forecast':<22}{tag.sentence()}")
    lines += [f"{'assumed ' + key:<22}{value}" for key, value in tag.assumptions.items()]
    return "\n".join(lines)


def _pretrain(recipe: PretrainRecipe) -> dict[str, Any]:
    corpus_bytes = sum(readers.text_bytes(part) for part in mixture.parts_of(recipe.corpus).values())
    objective = objective_of(recipe)
    vocabulary = synthetic.vocabulary_of(tokenizer_of(recipe), objective.special_tokens())
    budget, corpus_tokens = Budget.parse(recipe.training.budget), corpus_bytes / _BYTES_PER_TOKEN
    lengths = dict.fromkeys(phase.length for phase in recipe.training.phases)
    timings = {length: _timing(recipe, objective, vocabulary, length) for length in lengths}
    timing_of: dict[BatchSource, _Timing] = {timing.feed: timing for timing in timings.values()}
    tokens = updates = flops = seconds = 0.0
    for phase, share in _stretches(recipe.training, {length: timing.feed for length, timing in timings.items()}):
        timing = timing_of[phase.feed]
        trial, per_token, speed = timing.trial, timing.flops_per_token, timing.trial.tokens_per_second
        batch_tokens = phase.samples * trial.tokens_per_sample
        # An encoder-decoder reads more tokens of a row than were cut from the corpus for it.
        epoch_tokens = corpus_tokens * trial.tokens_per_sample / timing.row_tokens
        part = share * tokens_of(budget, speed, per_token, batch_tokens, epoch_tokens)
        tokens, updates = tokens + part, updates + part / batch_tokens
        flops, seconds = flops + per_token * part, seconds + part / speed
    tag = forecast_tag(flops, flops / seconds, recipe.cost, tokens=round(tokens))
    size = {
        "parameters": timing.parameters,
        "corpus": f"{corpus_bytes / 1e6:,.1f} MB of text, about {corpus_tokens / 1e6:,.1f} M tokens",
        "tokens to train on": round(tokens),
        "updates": round(updates),
        "FLOPs per token": round(flops / tokens),
    }
    return {
        "verb": "pretrain", "size": size, "tokens_per_second": tokens / seconds, "cores": trial.cores,
        "forecast": tag.to_dict(),
    }  # fmt: skip


def _finetune(recipe: FinetuneRecipe) -> dict[str, Any]:
    task: Task = registry.build("tasks", recipe.task)
    if not task.learns:
        raise RecipeError(f"task {recipe.task.kind!r} trains nothing", do="Run it: there is no training to foresee")  # type: ignore[attr-defined]
    splits = read_data(recipe.data, task)
    source = CheckpointFolder(recipe.model, task, recipe.seed, Pretraining)
    reading = source.reading(recipe.training.max_length)
    count = min(recipe.data.train_rows or len(splits.train), len(splits.train))
    some = min(256, count)
    sample = task.encode(splits.train.take(range(some)), reading, training=True)
    features = len(sample) / some
    tags = []
    speed = length = 0.0
    for section in filter(None, applicable_methods(recipe, task)[0].values()):
        adaptation: Adaptation = registry.build("adaptations", section)
        model = adaptation.adapt(source)
        task.prepare_head(model)
        if not trainable(model):
            continue
        choose_attention(model)
        settings = settings_of(recipe.training, section)
        learner = TaskLearner(model, task, adaptation, reading, sample, [], [])
        with tempfile.TemporaryDirectory() as work:
            loop = loop_of(learner, settings, recipe.training.batch_size, recipe.seed, Path(work), "")
            trial = timed(loop)
        per_token, speed, length = loop.phases.all[0].flops_per_token, trial.tokens_per_second, trial.tokens_per_sample
        tokens = tokens_of(
            Budget.parse(settings.budget), speed, per_token, recipe.training.batch_size * length,
            count * features * length,
        )  # fmt: skip
        held_out = len(splits.validation) * recipe.training.eval_count + len(splits.test)
        flops = recipe.seeds * per_token * (tokens + held_out * features * length / 3)
        tags.append(forecast_tag(flops, per_token * speed, recipe.cost, tokens=round(recipe.seeds * tokens)))
    total = sum(tags[1:], tags[0])
    size = {
        "training rows": count,
        "tokens a row": round(features * length, 1),
        "methods × seeds": f"{len(tags)} × {recipe.seeds}",
    }
    return {
        "verb": "finetune", "size": size, "tokens_per_second": speed, "cores": trial.cores,
        "forecast": total.to_dict(),
    }  # fmt: skip


def tokens_of(budget: Budget, speed: float, per_token: float, batch_tokens: float, epoch_tokens: float) -> float:
    """Return the tokens that a budget of any unit buys."""
    match budget.unit:
        case "seconds":
            return budget.amount * speed
        case "tokens":
            return budget.amount
        case "steps":
            return budget.amount * batch_tokens
        case "epochs":
            return budget.amount * epoch_tokens
        case "flops":
            return budget.amount / per_token


@dataclass(frozen=True)
class _Timing:
    """What rows of one length cost, found on noise."""

    feed: RowBatches
    row_tokens: int
    """Tokens that are cut from the corpus for a row."""
    trial: Trial
    flops_per_token: float
    parameters: int


def _timing(recipe: PretrainRecipe, objective: Objective, vocabulary: Vocabulary, length: int) -> _Timing:
    """Run some steps over rows of noise, which read no corpus."""
    shape = objective.row_shape(length)
    noise = [CorpusRows("", 1.0, synthetic.NoiseRows(vocabulary, shape))]
    learner = PretrainLearner(build_model(recipe, vocabulary, objective), objective, noise, noise, vocabulary, 0)
    # Asked to stop, a loop saves itself: what it writes must not stay.
    with tempfile.TemporaryDirectory() as work:
        loop = _noise_loop(recipe, learner, length, Path(work))
        trial = timed(loop)
    feed = RowBatches(noise, objective, vocabulary, 0)
    return _Timing(feed, shape.length, trial, loop.phases.all[0].flops_per_token, size_of(learner.module))


def _stretches(training: PretrainTraining, feeds: Mapping[int, BatchSource]) -> list[tuple[Phase, float]]:
    """Return the phases of a run, those of growing batches too, each with its share of the budget."""
    starts = accumulate((phase.share for phase in training.phases), initial=0.0)
    phases = [
        Phase(start, feeds[phase.length], training.rows_of(phase.length))
        for phase, start in zip(training.phases, starts, strict=False)
    ]
    grown = growing(phases, training.batch_warmup_ratio, training.batch_warmup_start)
    ends = [*(phase.start for phase in grown[1:]), 1.0]
    return [(phase, end - phase.start) for phase, end in zip(grown, ends, strict=True)]


def _noise_loop(recipe: PretrainRecipe, learner: PretrainLearner, length: int, work: Path) -> Loop:
    """Return the loop of one length of rows, with batches of their whole size."""
    rows = recipe.training.rows_of(length)
    first = recipe.training.rows_of(recipe.training.phases[0].length)
    together = recipe.training.samples_together(rows, first)
    batch = learner.batch([Sample(0, index) for index in range(min(together, _COUNTED_ROWS))])
    per_token = flops_per_token(learner.module, batch, learner.tokens(batch))
    settings = recipe.training.model_copy(update={"micro_batch_size": together, "batch_warmup_ratio": 0.0})
    return Loop(
        learner, settings, batch_size=rows, seed=0, folder=work, fingerprint="", flops_per_token=per_token,
    )  # fmt: skip
