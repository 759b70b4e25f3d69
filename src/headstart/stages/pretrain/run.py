"""Raw text → checkpoint: tokenizer, shards, backbone and objective under one recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from headstart.backbones.checkpoint import Checkpoint
from headstart.core import artifact
from headstart.core.config import fingerprint
from headstart.core.contracts import BatchSource, Objective
from headstart.core.data import Sample, Vocabulary
from headstart.corpus.read import mixture, readers
from headstart.evaluation.cost import PriceTag
from headstart.stages.pretrain.build import (
    build_model,
    longest_row,
    objective_of,
    require_same_tokens,
    require_shardable,
    tokenizer_of,
)
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, RowBatches
from headstart.stages.pretrain.prepare import Prepared, naming, prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.warm_start import warm_start
from headstart.stages.runs import card
from headstart.stages.runs.flops import flops_per_token
from headstart.stages.runs.folder import RunFolder
from headstart.stages.runs.meter import RecordedMeter
from headstart.tokens import tokenizer
from headstart.tokens.rows import cut
from headstart.training.batches import drawn
from headstart.training.loop import Loop, TrainResult
from headstart.training.module import LossModule
from headstart.training.phases import Phase
from headstart.training.progress import tracking
from headstart.training.world import World, joined

_COUNTED_ROWS = 8
"""Rows on which FLOPs are counted: several, since a mixture treats them differently."""


def run(recipe: PretrainRecipe, quiet: bool = False) -> Path:
    """Pre-train by a recipe and return the folder, a plain Hugging Face checkpoint.

    A folder with an unfinished run of this recipe is continued, a finished one returned as it is. Every process that
    `torchrun` starts calls this; the first prepares, measures and writes, and the others train with it.
    """
    with joined() as world:
        with world.main_first():
            folder = RunFolder(recipe.output, recipe, _inputs(recipe), writes=world.leads)
        if world.told(folder.status) != "finished":
            _train(recipe, folder, world, quiet or not world.leads)
        world.wait()
    return folder.path


def _train(recipe: PretrainRecipe, folder: RunFolder, world: World, quiet: bool) -> None:
    """Train, and in the leader's process measure, log and publish."""
    objective = objective_of(recipe)
    require_shardable(recipe, objective, world)
    if not world.leads:
        loop, _ = _loop(recipe, objective, folder, world, quiet)
        loop.restore()
        loop.run()
        return
    with RecordedMeter(folder.path / "cost.json", recipe.cost) as meter:
        loop, prepared = _loop(recipe, objective, folder, world, quiet)
        start = loop.restore()
        with tracking("pretrain", folder.path / "logs", start.resumed_from, quiet) as trackers:
            outcome = loop.run([*trackers, meter])
    _publish(recipe, objective, folder, prepared, loop, outcome, meter.tag())


def _loop(
    recipe: PretrainRecipe, objective: Objective, folder: RunFolder, world: World, quiet: bool
) -> tuple[Loop, Prepared]:
    """Prepare the text, the leader first, and set up the loop over it."""
    with world.main_first():
        prepared = prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, folder.path / "prepared", quiet)
    require_same_tokens(recipe, prepared.tokenizer)
    vocabulary = tokenizer.add_special(prepared.tokenizer, objective.special_tokens())
    vocabulary = replace(vocabulary, pieces=prepared.vocabulary.pieces)
    module = build_model(recipe, vocabulary, objective)
    if recipe.warm_start is not None:
        home = mixture.prepared_in(recipe.corpus) or folder.path / "prepared"
        with world.main_first():
            warm_start(recipe.warm_start, module, objective, prepared, home)
    learner, phases = _phases(recipe, prepared, vocabulary, objective, module)
    loop = Loop(
        learner,
        recipe.training,
        batch_size=phases[0].batch_size,
        seed=recipe.seed,
        folder=folder.path,
        fingerprint=folder.fingerprint,
        flops_per_token=phases[0].flops_per_token,
        later=phases[1:],
        world=world,
    )
    return loop, prepared


def _publish(
    recipe: PretrainRecipe, objective: Objective, folder: RunFolder, prepared: Prepared, loop: Loop,
    outcome: TrainResult, tag: PriceTag,
) -> None:  # fmt: skip
    """Write the networks, their tokenizer and the card into the folder."""
    progress, module = outcome.progress, cast(LossModule, loop.learner.module)
    parts = objective.parts(module.model)
    longest = longest_row(recipe, prepared.tokenizer)
    facts: dict[str, Any] = {
        "recipe": folder.recipe,
        "seed": recipe.seed,
        "parents": prepared.parents | _networks(recipe),
        "data": prepared.facts,
        "progress": {"steps": progress.step, "tokens": progress.tokens, **_epochs(loop, prepared)},
        "metrics": {"validation": outcome.validation, "unigram_entropy": prepared.unigram_entropy},
        "parameters": sum(p.numel() for p in parts[""].parameters()),
        "architecture": type(parts[""]).__name__,
        "cost": replace(tag, tokens=progress.tokens, flops=progress.flops).to_dict(),
    }
    size = 4 * sum(p.numel() for p in module.parameters())
    with artifact.published(folder.path, "checkpoint of pretrain", size_hint=size, **facts) as staging:
        for name, model in parts.items():
            model.save_pretrained(str(staging / name))
            tokenizer.save_for(prepared.tokenizer, staging / name, card.input_names(model), longest)
        (staging / "README.md").write_text(card.pretrained(facts), encoding="utf-8")


def _inputs(recipe: PretrainRecipe) -> dict[str, str]:
    """Name what is read by its content."""
    # A checkpoint's own tokenizer is named with it, unless another is made of it.
    ready = tokenizer_of(recipe).path if recipe.tokenizer.extend else recipe.tokenizer.path
    found = _networks(recipe) | _identities(tokenizer=ready)
    parts = mixture.parts_of(recipe.corpus)
    return {name: identity[:16] for name, identity in found.items()} | {
        f"corpus {name}".strip(): fingerprint(readers.sources(part)) for name, part in parts.items()
    }


def _networks(recipe: PretrainRecipe) -> dict[str, str]:
    """Name the checkpoint that a run starts from and the teacher that it learns from, where it does, by content."""
    section = recipe.backbone
    start = section.path if isinstance(section, Checkpoint.Config) else None
    return _identities(checkpoint=start, teacher=getattr(recipe.objective, "teacher", None))


def _identities(**folders: Path | None) -> dict[str, str]:
    """Name folders by their content, those that are there."""
    return {name: artifact.identity(path) for name, path in folders.items() if path is not None and path.is_dir()}


def _epochs(loop: Loop, prepared: Prepared) -> dict[str, Any]:
    """Say how often the text was read, and that of each corpus where there are several."""
    samples: dict[BatchSource, int] = {}
    for phase, taken in loop.phases.steps_of(loop.progress):
        samples[phase.feed] = samples.get(phase.feed, 0) + taken * phase.samples
    epochs = sum(taken / len(feed) for feed, taken in samples.items())
    if len(prepared.corpora) == 1:
        return {"epochs": epochs}
    read = [
        [n / part.size for n, part in zip(drawn(taken, feed.parts), feed.parts, strict=True)]
        for feed, taken in samples.items()
    ]
    each = dict(zip([corpus.name for corpus in prepared.corpora], map(sum, zip(*read, strict=True)), strict=True))
    return {"epochs": epochs, "epochs_of": each}


def _phases(
    recipe: PretrainRecipe, prepared: Prepared, vocabulary: Vocabulary, objective: Objective, module: torch.nn.Module
) -> tuple[PretrainLearner, list[Phase]]:
    """Lay rows of every length over the shards; returns the learner, who is the first phase's feed, and the phases."""

    def rows(length: int, split: Literal["train", "validation"] = "train") -> list[CorpusRows]:
        found: list[CorpusRows] = []
        for one in prepared.corpora:
            with naming(one.name):
                packed = cut(getattr(one, split), vocabulary, objective.row_shape(length))
            found.append(CorpusRows(one.name, one.share, packed))
        return found

    first = recipe.training.phases[0].length
    learner = PretrainLearner(module, objective, rows(first), rows(first, "validation"), vocabulary, recipe.seed)
    feeds: dict[int, RowBatches] = {first: learner}
    phases: list[Phase] = []
    start = 0.0
    for phase in recipe.training.phases:
        if phase.length not in feeds:
            feeds[phase.length] = RowBatches(rows(phase.length), objective, vocabulary, recipe.seed)
        feed = feeds[phase.length]
        batch = feed.batch([Sample(0, index) for index in range(min(_COUNTED_ROWS, len(feed)))])
        per_token = flops_per_token(learner.module, batch, learner.tokens(batch))
        phases.append(Phase(start, feed, recipe.training.rows_of(phase.length), per_token))
        start += phase.share
    return learner, phases


def summary(folder: Path) -> str:
    """Say in a few lines what a finished run gave and cost."""
    facts = artifact.read_manifest(folder)
    measured = facts["metrics"]["validation"]
    values = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
    progress = facts["progress"]
    return "\n".join([
        f"{folder}: {facts['parameters']:,} parameters, {progress['tokens']:,} tokens, {progress['steps']:,} updates",
        f"held-out {values} (a unigram model's loss: {facts['metrics']['unigram_entropy']:.3f})",
        f"cost: {PriceTag.from_dict(facts['cost']).sentence()}",
    ])  # fmt: skip
