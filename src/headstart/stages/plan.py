"""The price tag before anything is spent: a few steps are timed here, the rest is arithmetic."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.core import config, registry
from headstart.core.contracts import Adaptation, Batch, Rows, RowShape, Sample, Task, Vocabulary
from headstart.core.errors import RecipeError
from headstart.corpus import mixture, readers
from headstart.evaluation.cost import PriceTag, forecast_tag
from headstart.stages import recipes
from headstart.stages.adapt import AdaptedTask, trainable
from headstart.stages.finetune import FinetuneRecipe, read_data, settings_of, suited
from headstart.stages.forecast import flops_per_token
from headstart.stages.networks import build_model, objective_of, tokenizer_of
from headstart.stages.pretrain import PretrainRecipe
from headstart.stages.rehearsal import Pretraining
from headstart.tasks.source import CheckpointFolder
from headstart.tokens.tokenizer import TokenizerConfig, add_special
from headstart.tokens.tokenizer import load as load_tokenizer
from headstart.training import precision
from headstart.training.budget import Budget
from headstart.training.compilation import choose_attention, compile_layers
from headstart.training.module import LossModule
from headstart.training.settings import TrainingSettings

_TIMED_STEPS = 5
_BYTES_PER_TOKEN = 4.4
"""English Wikipedia and novels under WordPiece of 16k: 386.2 MB gave 87.5 M tokens. Other text differs."""


def run(recipe: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Forecast a recipe of either kind; returns the size, the speed found here and the price tag."""
    raw = config.apply_overrides(recipe if isinstance(recipe, dict) else config.parse(config.find(recipe)), overrides)
    verb = recipes.verb_of(raw)
    if verb not in ("pretrain", "finetune"):
        raise RecipeError(f"this is a recipe of `headstart {verb}`", allowed="What is foreseen is training")
    filled: Any = config.fill(recipes.by_verb()[verb], raw)
    return _pretrain(filled) if verb == "pretrain" else _finetune(filled)


def render(found: dict[str, Any]) -> str:
    """Say the forecast in lines."""
    tag = PriceTag.from_dict(found["forecast"])
    lines = [
        f"{key:<22}{value:,}" if isinstance(value, int | float) else f"{key:<22}{value}"
        for key, value in found["size"].items()
    ]
    lines.append(
        f"{'speed here':<22}{found['tokens_per_second']:,.0f} tokens a second, timed over {_TIMED_STEPS} steps"
    )
    lines.append(f"{'forecast':<22}{tag.sentence()}")
    lines += [f"{'assumed ' + key:<22}{value}" for key, value in tag.assumptions.items()]
    return "\n".join(lines)


def _pretrain(recipe: PretrainRecipe) -> dict[str, Any]:
    corpus_bytes = sum(readers.text_bytes(part) for part in mixture.parts_of(recipe.corpus).values())
    objective = objective_of(recipe)
    vocabulary = _vocabulary(tokenizer_of(recipe), objective.special_tokens())
    module = LossModule(build_model(recipe, vocabulary, objective), objective)
    budget, corpus_tokens = Budget.parse(recipe.training.budget), corpus_bytes / _BYTES_PER_TOKEN
    tokens = updates = flops = seconds = 0.0
    first_rows = recipe.training.rows_of(recipe.training.phases[0].length)
    for phase in recipe.training.phases:
        batch_rows = recipe.training.rows_of(phase.length)
        rows = recipe.training.samples_together(batch_rows, first_rows)
        batch = objective.corrupt(_noise(vocabulary, objective.row_shape(phase.length), rows), vocabulary, 0)
        read = objective.tokens(batch)
        per_token = flops_per_token(module, batch, read)
        speed = _time(module, batch, read, recipe.training)
        batch_tokens = batch_rows * phase.length
        part = phase.share * _tokens(budget, speed, per_token, batch_tokens, corpus_tokens)
        tokens, updates = tokens + part, updates + part / batch_tokens
        flops, seconds = flops + per_token * part, seconds + part / speed
    tag = forecast_tag(flops, flops / seconds, recipe.cost, tokens=round(tokens))
    size = {
        "parameters": sum(p.numel() for p in module.parameters()),
        "corpus": f"{corpus_bytes / 1e6:,.1f} MB of text, about {corpus_tokens / 1e6:,.1f} M tokens",
        "tokens to train on": round(tokens),
        "updates": round(updates),
        "FLOPs per token": round(flops / tokens),
    }
    return {"verb": "pretrain", "size": size, "tokens_per_second": tokens / seconds, "forecast": tag.to_dict()}


def _finetune(recipe: FinetuneRecipe) -> dict[str, Any]:
    task: Task = registry.build("tasks", recipe.task)
    if not task.learns:
        raise RecipeError(f"task {recipe.task.kind!r} trains nothing", do="Run it: there is no training to foresee")  # type: ignore[attr-defined]
    splits = read_data(recipe, task)
    source = CheckpointFolder(recipe.model, task, recipe.seed, Pretraining)
    reading = source.reading(recipe.training.max_length)
    count = min(recipe.data.labels or len(splits.train), len(splits.train))
    some = min(256, count)
    sample = task.encode(splits.train.take(range(some)), reading, training=True)
    lengths = [task.length(feature) for feature in sample]
    mean_length, of_feature = sum(lengths) / some, sum(lengths) / len(lengths)
    together = sample[: recipe.training.batch_size]
    plain = task.collate(together, reading)
    tags = []
    speed = 0.0
    for section in filter(None, suited(recipe, task)[0].values()):
        adaptation: Adaptation = registry.build("adaptations", section)
        model = adaptation.adapt(source)
        task.prepare_head(model)
        if not trainable(model):
            continue
        batch = adaptation.extend(plain, [Sample(0, index) for index in range(len(together))])
        choose_attention(model)
        settings = settings_of(recipe.training, section)
        module, read = LossModule(model, AdaptedTask(task, adaptation)), task.tokens(batch)
        per_token = flops_per_token(module, batch, read)
        speed = _time(module, batch, read, settings)
        tokens = _tokens(
            Budget.parse(settings.budget),
            speed,
            per_token,
            recipe.training.batch_size * of_feature,
            count * mean_length,
        )
        held_out = len(splits.validation) * recipe.training.evaluations + len(splits.test)
        flops = recipe.seeds * per_token * (tokens + held_out * mean_length / 3)
        tags.append(forecast_tag(flops, per_token * speed, recipe.cost, tokens=round(recipe.seeds * tokens)))
    total = sum(tags[1:], tags[0])
    size = {
        "training rows": count,
        "tokens a row": round(mean_length, 1),
        "methods × seeds": f"{len(tags)} × {recipe.seeds}",
    }
    return {"verb": "finetune", "size": size, "tokens_per_second": speed, "forecast": total.to_dict()}


def _tokens(budget: Budget, speed: float, per_token: float, batch_tokens: float, epoch_tokens: float) -> float:
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


def _time(module: torch.nn.Module, batch: Batch, tokens: int, settings: TrainingSettings) -> float:
    """Return tokens a second: the median of a few steps after two to warm up."""
    device = precision.default_device()
    module.to(device)
    if settings.compile:
        compile_layers(module)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    optimiser = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-6, fused=True)
    seconds = []
    for _ in range(_TIMED_STEPS + 2):
        start = time.perf_counter()
        with precision.autocast(precision.resolve(settings.precision, device), device):
            loss = module(batch) / 100
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        seconds.append(time.perf_counter() - start)
    return tokens / statistics.median(seconds[2:])


def _vocabulary(settings: TokenizerConfig, extra: Sequence[str]) -> Vocabulary:
    """What the tokenizer will be: a ready one, with as many tokens more as it may learn, or a stand-in."""
    if settings.path is None:
        return _stand_in(settings.vocab, extra)
    known = add_special(load_tokenizer(settings.path), extra)
    more = settings.extend or 0
    return replace(
        known,
        size=known.size + more,
        special=np.pad(known.special, (0, more)),
        starts_word=np.pad(known.starts_word, (0, more), constant_values=True),
        ends_word=None if known.ends_word is None else np.pad(known.ends_word, (0, more)),
    )


def _stand_in(size: int, extra: Sequence[str]) -> Vocabulary:
    """A vocabulary of the right size, before any tokenizer is trained."""
    total = size + len(extra)
    special = np.zeros(total, dtype=bool)
    special[:5] = special[size:] = True
    return Vocabulary(
        total, pad=0, cls=2, sep=3, mask=4, special=special, starts_word=np.ones(total, dtype=bool),
        added={token: size + place for place, token in enumerate(extra)},
    )  # fmt: skip


def _noise(vocabulary: Vocabulary, shape: RowShape, rows: int) -> Rows:
    """Rows of random tokens in the objective's shape: they cost what real ones do."""
    ordinary = np.flatnonzero(~vocabulary.special)
    draw = np.random.Generator(np.random.Philox(0))
    ids = ordinary[draw.integers(0, len(ordinary), size=(rows, shape.length))]
    if shape.opens:
        ids[:, 0] = vocabulary.cls
    if shape.closes:
        ids[:, -1] = vocabulary.sep
    middle = shape.length // 2
    if shape.segments:
        ids[:, middle - 1] = vocabulary.sep
    return Rows(
        ids,
        [Sample(0, row) for row in range(rows)],
        [np.asarray([1, middle])] * rows if shape.sentences else (),
        np.full(rows, middle) if shape.segments else None,
        np.roll(ids, 1, axis=0) if shape.segments else None,
    )
