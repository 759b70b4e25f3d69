"""The cost of a run before it starts: a few steps are timed on this machine, the rest is arithmetic."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from headstart.core import registry
from headstart.core.contracts import Adaptation, BatchSource, Objective
from headstart.core.data import Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.corpus.read import mixture
from headstart.evaluation.cost import PriceTag, forecast_tag
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.adapt_first import pretraining_recipe
from headstart.stages.finetune.forgetting import open_probe
from headstart.stages.finetune.learner import TaskLearner, build_loop, count_parameters, count_trainable
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.finetune.setup import check_setup
from headstart.stages.plan import synthetic
from headstart.stages.plan.checks import check_text, warn_about_output
from headstart.stages.plan.trial import STEPS, Trial, time_steps
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.build import build_model, objective_of, special_tokens_of, tokenizer_of
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, RowBatches
from headstart.stages.pretrain.recipe import PretrainRecipe, PretrainTraining
from headstart.stages.runs.flops import flops_per_token
from headstart.tasks.source import require_checkpoint
from headstart.training.budget import Budget
from headstart.training.callbacks import Callback
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase, with_batch_warmup
from headstart.training.settings import TrainingSettings

_COUNTED_ROWS = 8
"""Rows on which FLOPs are counted: several, because a mixture of objectives treats rows differently."""
_SAMPLED_ROWS = 256
"""Labeled rows that are encoded to estimate lengths."""
QUIET = 0.8
"""The fraction of its cores' time below which a forecast reports a busy machine."""
_BYTES_PER_TOKEN = 4.4
"""English Wikipedia and novels under WordPiece with 16k tokens: 386.2 MB gave 87.5 M tokens. Other text differs."""


def run(recipe: Any) -> dict[str, Any]:
    """Forecast a filled recipe of `pretrain` or `finetune`: its size, the speed measured here, and its cost."""
    if isinstance(recipe, PretrainRecipe):
        return _pretrain(recipe)
    if isinstance(recipe, FinetuneRecipe):
        return _finetune(recipe)
    raise RecipeError(
        f"this is a recipe of `headstart {recipe.verb}`",
        allowed="`headstart plan` forecasts `pretrain` and `finetune`",
    )


def render(plan: dict[str, Any]) -> str:
    """Return the forecast as lines of text."""
    tag = PriceTag.from_dict(plan["forecast"])
    lines = [
        f"{key:<22}{value:,}" if isinstance(value, int | float) else f"{key:<22}{value}"
        for key, value in plan["size"].items()
    ]
    speed, cores = plan["tokens_per_second"], plan["cores"]
    lines.append(f"{'speed here':<22}{speed:,.0f} tokens per second, timed over {STEPS} training steps")
    if cores < QUIET:
        lines.append(
            f"{'busy machine':<22}this process got {cores:.0%} of its cores' time; on an idle machine, the run would "
            f"take {cores:.2g} × as long"
        )
    lines.append(f"{'forecast':<22}{tag.sentence()}")
    lines += [f"{'assumed ' + key:<22}{value}" for key, value in tag.assumptions.items()]
    return "\n".join(lines)


def _pretrain(recipe: PretrainRecipe) -> dict[str, Any]:
    parts = mixture.parts_of(recipe.corpus).values()
    sizes = [mixture.text_bytes(part) for part in parts]
    tokens_by_part = [
        mixture.token_count(part) or size / _BYTES_PER_TOKEN for part, size in zip(parts, sizes, strict=True)
    ]
    corpus_bytes, corpus_tokens = sum(sizes), sum(tokens_by_part)
    objective = objective_of(recipe)
    check_text(recipe, objective, corpus_bytes)
    warn_about_output(recipe, pretrain.inputs_of(recipe))
    vocabulary = synthetic.vocabulary_of(tokenizer_of(recipe), special_tokens_of(recipe, objective))
    budget = Budget.parse(recipe.training.budget)
    lengths = dict.fromkeys(phase.length for phase in recipe.training.phases)
    timings = {length: _timing(recipe, objective, vocabulary, length) for length in lengths}
    timing_of: dict[BatchSource, _Timing] = {timing.feed: timing for timing in timings.values()}
    tokens = updates = flops = seconds = 0.0
    for phase, fraction in _phase_fractions(
        recipe.training, {length: timing.feed for length, timing in timings.items()}
    ):
        timing = timing_of[phase.feed]
        trial, per_token, speed = timing.trial, timing.trial.flops_per_token, timing.trial.tokens_per_second
        batch_tokens = phase.samples * trial.tokens_per_sample
        # An encoder-decoder reads more tokens per row than the row takes from the corpus.
        epoch_tokens = corpus_tokens * trial.tokens_per_sample / timing.row_tokens
        part = fraction * tokens_of(budget, speed, per_token, batch_tokens, epoch_tokens)
        tokens, updates = tokens + part, updates + part / batch_tokens
        flops, seconds = flops + per_token * part, seconds + part / speed
    tag = forecast_tag(flops, flops / seconds, recipe.cost, tokens=round(tokens))
    size = {
        "parameters": timing.parameters,
        "corpus": f"{corpus_bytes / 1e6:,.1f} MB of text, about {corpus_tokens / 1e6:,.1f} M tokens",
        "tokens to train on": round(tokens),
        "updates": round(updates),
        "FLOPs per token": round(flops / tokens),
        "memory of a step": trial.memory,
    }
    return {
        "verb": "pretrain", "size": size, "tokens_per_second": tokens / seconds, "cores": trial.cores,
        "forecast": tag.to_dict(),
    }  # fmt: skip


def _finetune(recipe: FinetuneRecipe) -> dict[str, Any]:
    require_checkpoint(recipe.model)
    setup = check_setup(recipe)
    open_probe(recipe.forgetting, setup.source)
    task, splits, source, spec = setup.task, setup.splits, setup.source, setup.spec
    if not task.learns:
        kind = registry.name_of("tasks", recipe.task)
        raise RecipeError(f"the task {kind!r} trains nothing", do="Run it directly; there is no training to forecast")
    warn_about_output(recipe, finetune.inputs_of(recipe))
    count = min(recipe.data.train_rows or len(splits.train), len(splits.train))
    sampled = min(_SAMPLED_ROWS, count)
    sample = task.encode(splits.train.take(range(sampled)), spec, training=True)
    features = len(sample) / sampled
    tags = []
    speed = length = 0.0
    for section in filter(None, setup.methods.values()):
        adaptation: Adaptation = registry.build("adaptations", section)
        model = adaptation.adapt(source)
        task.prepare_head(model)
        if not count_trainable(model):
            continue
        choose_attention(model)
        settings = settings_of(recipe.training, section)
        texts = setup.unlabeled_for(section)
        rows = count + (0 if texts is None else len(texts))
        # Both kinds of rows are timed in the proportion in which they are trained on.
        labeled = max(1, round(len(sample) * count / rows))
        unlabeled = [] if texts is None else task.encode(texts.take(range(min(sampled, len(texts)))), spec)
        learner = TaskLearner(model, task, adaptation, spec, sample[:labeled], [], [], unlabeled[: sampled - labeled])
        trial = _time_learner(learner, settings, recipe)
        per_token, speed, length = trial.flops_per_token, trial.tokens_per_second, trial.tokens_per_sample
        tokens = tokens_of(
            Budget.parse(settings.budget), speed, per_token, recipe.training.batch_size * length,
            rows * features * length,
        )  # fmt: skip
        held_out = len(splits.validation) * recipe.training.eval_count + len(splits.test)
        flops = recipe.seeds * per_token * (tokens + held_out * features * length / 3)
        tags.append(forecast_tag(flops, per_token * speed, recipe.cost, tokens=round(recipe.seeds * tokens)))
    if not tags:
        raise RecipeError("none of the methods of this recipe has parameters to train", do="Run it directly")
    total = sum(tags[1:], tags[0])
    size = {
        "training rows": count,
        "tokens per row": round(features * length, 1),
        "methods × seeds": f"{len(tags)} × {recipe.seeds}",
        "memory of a step": trial.memory,
    }
    if recipe.adapt_first is not None:
        with tempfile.TemporaryDirectory() as work:
            adapting = _pretrain(pretraining_recipe(setup, recipe.adapt_first, Path(work)))
        size["tokens to adapt to"] = adapting["size"]["tokens to train on"]
        total += PriceTag.from_dict(adapting["forecast"])
    return {
        "verb": "finetune", "size": size, "tokens_per_second": speed, "cores": trial.cores,
        "forecast": total.to_dict(),
    }  # fmt: skip


def _time_learner(learner: TaskLearner, settings: TrainingSettings, recipe: FinetuneRecipe) -> Trial:
    with tempfile.TemporaryDirectory() as work:
        info = RunInfo(Path(work), fingerprint="", seed=recipe.seed)

        def build(settings: TrainingSettings, callbacks: Sequence[Callback]) -> Loop:
            return build_loop(learner, settings, recipe.training.batch_size, info, callbacks)

        return time_steps(build, settings, sorted_by_length=True)


def tokens_of(budget: Budget, speed: float, per_token: float, batch_tokens: float, epoch_tokens: float) -> float:
    """Return the number of tokens that a budget of any unit pays for."""
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
    """The cost of rows of one length, measured on random tokens."""

    feed: RowBatches
    row_tokens: int
    """Tokens that a row takes from the corpus."""
    trial: Trial
    parameters: int


def _timing(recipe: PretrainRecipe, objective: Objective, vocabulary: Vocabulary, length: int) -> _Timing:
    """Time some steps on rows of random tokens, for which no corpus is read."""
    shape = objective.row_shape(length)
    noise = [CorpusRows("", 1.0, synthetic.NoiseRows(vocabulary, shape))]
    learner = PretrainLearner(build_model(recipe, vocabulary, objective), objective, noise, noise, vocabulary, 0)
    rows = recipe.training.rows_of(length)
    micro = recipe.training.micro_batch_for(rows, recipe.training.rows_of(recipe.training.phases[0].length))
    batch = learner.batch([Sample(0, index) for index in range(min(micro, _COUNTED_ROWS))])
    phase = Phase(0.0, learner, rows, flops_per_token(learner.module, batch, learner.tokens(batch)))
    with tempfile.TemporaryDirectory() as work:

        def build(settings: TrainingSettings, callbacks: Sequence[Callback]) -> Loop:
            return Loop(learner, settings, RunInfo(Path(work), fingerprint=""), [phase], callbacks=callbacks)

        settings = recipe.training.model_copy(update={"micro_batch_size": micro, "batch_warmup_ratio": 0.0})
        trial = time_steps(build, settings)
    feed = RowBatches(noise, objective, vocabulary, 0)
    return _Timing(feed, shape.length, trial, count_parameters(learner.module))


def _phase_fractions(training: PretrainTraining, feeds: Mapping[int, BatchSource]) -> list[tuple[Phase, float]]:
    """Return the phases of a run, including those of batch warmup, each with its fraction of the budget."""
    starts = accumulate((phase.share for phase in training.phases), initial=0.0)
    phases = [
        Phase(start, feeds[phase.length], training.rows_of(phase.length))
        for phase, start in zip(training.phases, starts, strict=False)
    ]
    phases = with_batch_warmup(phases, training.batch_warmup_ratio, training.batch_warmup_start)
    ends = [*(phase.start for phase in phases[1:]), 1.0]
    return [(phase, end - phase.start) for phase, end in zip(phases, ends, strict=True)]
