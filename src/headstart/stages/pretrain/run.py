"""Raw text or a finished corpus → checkpoint: tokenizer, shards, backbone and objective of one recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch

from headstart.backbones.checkpoint import Checkpoint
from headstart.checkpoint import files
from headstart.checkpoint.names import Kind, folder_of
from headstart.checkpoint.silence import silenced
from headstart.core import artifact, registry, renames
from headstart.core.config import fingerprint
from headstart.core.contracts import BatchSource, Objective
from headstart.core.data import RowShape, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.corpus.read import mixture
from headstart.corpus.read.store_folder import StoreFolder
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.evaluation.cost import PriceTag
from headstart.stages.doctor import checkup
from headstart.stages.pretrain.build import (
    build_model,
    build_sharded,
    max_length_of,
    objective_of,
    require_same_tokens,
    require_shardable,
    special_tokens_of,
    tokenizer_of,
)
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner, RowBatches, shuffle_of
from headstart.stages.pretrain.prepare import Prepared, naming, prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.snapshots import SnapshotCallback
from headstart.stages.pretrain.stream import FOLDER, LEDGER, PartReader, StreamedRows
from headstart.stages.pretrain.warm_start import warm_start
from headstart.stages.runs import card
from headstart.stages.runs.checkpoint_store import RemoteCheckpoints, UploadCallback, restored_run
from headstart.stages.runs.flops import flops_per_token
from headstart.stages.runs.folder import RunFolder, pin_recipe
from headstart.stages.runs.machine import attention_of, record_machine
from headstart.stages.runs.manifest import Machine, PretrainData, PretrainManifest, PretrainMetrics, PretrainProgress
from headstart.stages.runs.meter import RecordedMeter
from headstart.tasks.framing import without_cls
from headstart.tokens import tokenizer
from headstart.tokens.rows import cut
from headstart.training import health
from headstart.training.batches import drawn
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.jsonl import read_jsonl
from headstart.training.loop import Loop, RunInfo, TrainResult
from headstart.training.module import LossModule
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings
from headstart.training.trackers import reporting_callbacks
from headstart.training.world import World, joined

_NAMES: dict[str, Kind] = {"backbone.path": "model", "tokenizer.path": "model", "objective.teacher": "model"}
"""The settings that may be names on the Hub."""
_COUNTED_ROWS = 8
"""Rows on which FLOPs are counted: several, because a mixture of objectives treats rows differently."""


def run(recipe: PretrainRecipe, quiet: bool = False, snapshots: int = 0) -> Path:
    """Pre-train with a recipe and return the output folder, a plain Hugging Face checkpoint.

    An unfinished run of the same recipe is resumed, and a finished one is returned as it is. Every process that
    `torchrun` starts calls this function. Rank 0 prepares data, evaluates, logs and saves. With `snapshots`, or
    `training.snapshots` of the recipe, the budget is divided into so many parts, and `snapshots_of` finds the networks
    after each but the last; one process.
    """
    with joined(recipe.training.ddp_timeout) as world, ExitStack() as stack:
        store = _checkpoint_store(recipe) if world.is_main else None
        with world.main_first(), restored_run(store.folder, recipe.output) if store is not None else nullcontext():
            # The other ranks read the commits in the recipe that rank 0 has written.
            recipe = pin_recipe(recipe, _NAMES)
            folder = stack.enter_context(RunFolder(recipe.output, recipe, inputs_of(recipe), writes=world.is_main))
        if world.broadcast(folder.status) != "finished":
            if store is not None:
                store.restore(folder.fingerprint)
                store.upload_run()
            parts = snapshots or recipe.training.snapshots
            _train(recipe, folder, world, quiet or not world.is_main, parts, store)
        world.barrier()
    return folder.path


def _checkpoint_store(recipe: PretrainRecipe) -> RemoteCheckpoints | None:
    url = recipe.training.checkpoint_store
    return None if url is None else RemoteCheckpoints(StoreFolder(url), recipe.output)


def _train(
    recipe: PretrainRecipe, folder: RunFolder, world: World, quiet: bool, snapshots: int,
    store: RemoteCheckpoints | None,
) -> None:  # fmt: skip
    """Train on all ranks; rank 0 also evaluates, logs, uploads checkpoints and publishes."""
    objective = objective_of(recipe)
    require_shardable(recipe, objective, world)
    if snapshots and world.size > 1:
        raise RecipeError(
            f"training.snapshots is {snapshots}, and the run has {world.size} processes",
            allowed="Snapshots are written by a run of one process",
            do="Set training.snapshots to 0, or use one process",
        )
    machines = record_machine(folder.path, recipe.training) if world.is_main else []
    reporting = reporting_callbacks("pretrain", recipe.training.report_to, quiet) if world.is_main else []
    training = recipe.training
    uploads = [] if store is None else [UploadCallback(store, training.save_total_limit, training.save_keep_steps)]
    with ExitStack() as stack:
        with RecordedMeter(folder.path / "cost.json", recipe.cost, world=world) as meter:
            loop, prepared = _loop(recipe, objective, folder, world, quiet, [*reporting, meter, *uploads])
            stream = _stream_of(loop)
            if stream is not None:
                stack.callback(stream.close)
            if snapshots:
                save = partial(_save_networks, recipe, objective, prepared, loop)
                # Before the callback that writes the checkpoint from which a killed run resumes.
                loop.callbacks.insert(0, SnapshotCallback(folder.path, snapshots, save))
            loop.restore()
            outcome = loop.run()
        if world.is_main:
            _publish(recipe, objective, folder, prepared, loop, outcome, meter.tag(), machines)
    if stream is not None and world.is_main:
        stream.remove()


def _loop(
    recipe: PretrainRecipe, objective: Objective, folder: RunFolder, world: World, quiet: bool,
    reporting: Sequence[Callback] = (),
) -> tuple[Loop, Prepared]:  # fmt: skip
    """Prepare the text, rank 0 first, and set up the training loop with its callbacks and those that report."""
    with world.main_first():
        # Rank 0 comes first and verifies the shards for all.
        prepared = prepare(
            recipe.corpus, tokenizer_of(recipe), recipe.seed, folder.path / "prepared", quiet, verify=world.is_main,
            stretch=recipe.training.stretch,
        )  # fmt: skip
    require_same_tokens(recipe, prepared.tokenizer)
    # Before special tokens are added, so that all parts are encoded as the first ones were.
    reader = _part_reader(recipe, prepared, folder)
    vocabulary = tokenizer.add_special(prepared.tokenizer, special_tokens_of(recipe, objective))
    vocabulary = replace(vocabulary, pieces=prepared.vocabulary.pieces)
    if recipe.training.shards_weights and world.size > 1:
        # The counts come from the first parts of a streamed corpus.
        count = partial(_phases, recipe, prepared, vocabulary, objective, stream=lambda shape: None)
        module = build_sharded(recipe, vocabulary, objective, count)
    else:
        module = build_model(recipe, vocabulary, objective)
    if recipe.warm_start is not None:
        vectors_folder = mixture.prepared_in(recipe.corpus) or folder.path / "prepared"
        with world.main_first():
            warm_start(recipe.warm_start, module, objective, prepared, vectors_folder)

    def stream(shape: RowShape) -> StreamedRows | None:
        cut_part = partial(cut, vocabulary=vocabulary, shape=shape, language=prepared.corpora[0].language)
        return None if reader is None else StreamedRows(reader, cut_part, folder.path / LEDGER, world.is_main)

    learner, phases = _phases(recipe, prepared, vocabulary, objective, module, stream)
    info = RunInfo(folder.path, folder.fingerprint, recipe.seed)
    callbacks = [*default_callbacks(recipe.training), *reporting]
    return Loop(learner, recipe.training, info, phases, callbacks=callbacks, world=world), prepared


def _part_reader(recipe: PretrainRecipe, prepared: Prepared, folder: RunFolder) -> PartReader | None:
    """Return what encodes the parts of a streamed corpus; None for a corpus that was encoded as a whole."""
    corpus = recipe.corpus
    if not isinstance(corpus, StreamedCorpus):
        return None
    return PartReader(corpus, deepcopy(prepared.tokenizer), folder.fingerprint, recipe.seed, folder.path / FOLDER)


def _stream_of(loop: Loop) -> StreamedRows | None:
    """Return the rows of a streamed corpus that a loop reads; None for another corpus."""
    rows = cast(RowBatches, loop.phases.all[0].feed).rows
    return rows if isinstance(rows, StreamedRows) else None


def _publish(
    recipe: PretrainRecipe, objective: Objective, folder: RunFolder, prepared: Prepared, loop: Loop,
    outcome: TrainResult, tag: PriceTag, machines: Sequence[Machine],
) -> None:  # fmt: skip
    """Write the networks, their tokenizer and the model card to the output folder."""
    progress, module = outcome.progress, cast(LossModule, loop.learner.module)
    networks, stream = objective.parts(module.model), _stream_of(loop)
    manifest = PretrainManifest(
        recipe=folder.recipe,
        seed=recipe.seed,
        parents=prepared.parents | _checkpoints(recipe),
        machines=[machine.model_copy(update={"attention": attention_of(networks[""])}) for machine in machines],
        data=PretrainData.model_validate(prepared.facts | (stream.facts() if stream is not None else {})),
        progress=PretrainProgress(steps=progress.step, tokens=progress.tokens, **_epochs(loop, prepared)),
        metrics=PretrainMetrics(validation=outcome.validation, unigram_entropy=prepared.unigram_entropy),
        parameters=sum(p.numel() for p in networks[""].parameters()),
        architecture=type(networks[""]).__name__,
        cost=tag,
    )
    size = 4 * sum(p.numel() for p in module.parameters())
    with artifact.published(folder.path, PretrainManifest.KIND, size_hint=size, **manifest.to_dict()) as staging:
        _save_networks(recipe, objective, prepared, loop, staging.path)
        (staging / "README.md").write_text(card.pretrained(manifest), encoding="utf-8")


def _save_networks(recipe: PretrainRecipe, objective: Objective, prepared: Prepared, loop: Loop, folder: Path) -> None:
    """Save each network with its tokenizer: the main one in the folder, the others in subfolders."""
    networks = objective.parts(cast(LossModule, loop.learner.module).model)
    max_length = max_length_of(recipe, prepared.tokenizer)
    framed: Any = prepared.tokenizer
    if networks[""].config.is_encoder_decoder and not objective.row_shape(recipe.training.longest).add_cls:
        framed = without_cls(framed)
    for name, network in networks.items():
        with silenced():
            network.save_pretrained(str(folder / name))
        tokenizer.save_for(framed, folder / name, card.input_names(network), max_length)


def inputs_of(recipe: PretrainRecipe) -> dict[str, str]:
    """Return the content hash of everything that the run reads, by name."""
    settings = recipe.tokenizer
    path = settings.path if settings is not None else None
    if settings is not None and settings.extend is not None:
        # Otherwise the hash of a checkpoint covers its tokenizer.
        path = tokenizer_of(recipe).path
    identities = _checkpoints(recipe) | _identities(tokenizer=path)
    parts = mixture.parts_of(recipe.corpus)
    return {name: identity[:16] for name, identity in identities.items()} | {
        f"corpus {name}".strip(): fingerprint(mixture.sources(part)) for name, part in parts.items()
    }


def _checkpoints(recipe: PretrainRecipe) -> dict[str, str]:
    """Return the content hashes of the checkpoint that a run starts from and of its teacher, if it has them."""
    section = recipe.backbone
    start = section.path if isinstance(section, Checkpoint.Config) else None
    return _identities(checkpoint=start, teacher=getattr(recipe.objective, "teacher", None))


def _identities(**folders: Path | None) -> dict[str, str]:
    """Return the content hashes of the folders that exist."""
    local = {name: folder_of(path) for name, path in folders.items() if path is not None}
    return {name: artifact.identity(path) for name, path in local.items() if path.is_dir()}


def _epochs(loop: Loop, prepared: Prepared) -> dict[str, Any]:
    """Return the number of epochs, and that of each corpus if there are several."""
    samples: dict[BatchSource, int] = {}
    for phase, steps in loop.phases.steps_of(loop.progress):
        samples[phase.feed] = samples.get(phase.feed, 0) + steps * phase.samples
    stream = _stream_of(loop)
    if stream is not None:
        return {"epochs": stream.epochs(sum(samples.values()))}
    epochs = sum(count / len(feed) for feed, count in samples.items())
    if len(prepared.corpora) == 1:
        return {"epochs": epochs}
    by_feed = [
        [n / part.size for n, part in zip(drawn(count, feed.parts), feed.parts, strict=True)]
        for feed, count in samples.items()
    ]
    names = [corpus.name for corpus in prepared.corpora]
    return {"epochs": epochs, "epochs_of": dict(zip(names, map(sum, zip(*by_feed, strict=True)), strict=True))}


def _phases(
    recipe: PretrainRecipe, prepared: Prepared, vocabulary: Vocabulary, objective: Objective, module: torch.nn.Module,
    stream: Callable[[RowShape], StreamedRows | None],
) -> tuple[PretrainLearner, list[Phase]]:  # fmt: skip
    """Return the learner, which is the feed of the first phase, and the phases, one per row length.

    `stream` returns the training rows of a streamed corpus, of which `prepared` has only the first ones.
    """

    def rows(length: int, split: Literal["train", "validation"] = "train") -> list[CorpusRows]:
        corpora: list[CorpusRows] = []
        for corpus in prepared.corpora:
            with naming(corpus.name):
                row_source = cut(getattr(corpus, split), vocabulary, objective.row_shape(length), corpus.language)
            shuffle = shuffle_of(recipe.training, corpus.train.tokens / len(row_source)) if split == "train" else None
            corpora.append(CorpusRows(corpus.name, corpus.share, row_source, corpus.train.is_remote, shuffle))
        return corpora

    def trained(length: int) -> list[CorpusRows]:
        streamed = stream(objective.row_shape(length))
        return rows(length) if streamed is None else [CorpusRows("", 1.0, streamed)]

    first = recipe.training.phases[0].length
    learner = PretrainLearner(module, objective, trained(first), rows(first, "validation"), vocabulary, recipe.seed)
    feeds: dict[int, RowBatches] = {first: learner}
    phases: list[Phase] = []
    start = 0.0
    for phase in recipe.training.phases:
        if phase.length not in feeds:
            feeds[phase.length] = RowBatches(trained(phase.length), objective, vocabulary, recipe.seed)
        counted = RowBatches(rows(phase.length), objective, vocabulary, recipe.seed)
        batch = counted.batch([Sample(0, index) for index in range(min(_COUNTED_ROWS, len(counted)))])
        per_token = flops_per_token(learner.module, batch, learner.tokens(batch))
        phases.append(Phase(start, feeds[phase.length], recipe.training.rows_of(phase.length), per_token))
        start += phase.share
    return learner, phases


def summary(folder: Path) -> str:
    """Return a summary of a finished run in a few lines: size, held-out scores, cost, and what is wrong with it."""
    manifest = PretrainManifest.read(folder)
    progress, metrics = manifest.progress, manifest.metrics
    values = ", ".join(f"{name} {value:.3f}" for name, value in metrics.validation.items())
    return "\n".join([
        f"{folder}: {manifest.parameters:,} parameters, {progress.tokens:,} tokens, {progress.steps:,} updates",
        f"held-out {values} (a unigram model's loss: {metrics.unigram_entropy:.3f})",
        f"cost: {manifest.cost.sentence()}",
        *_complaints(folder, manifest),
    ])  # fmt: skip


def _complaints(folder: Path, manifest: PretrainManifest) -> list[str]:
    """Return what is wrong with a finished run: it diverged, learned token frequencies only, or was always clipped."""
    curve = read_jsonl(folder / "logs" / "metrics.jsonl")
    objective = registry.resolve("objectives", manifest.recipe["objective"]["name"])
    name = getattr(objective, "token_loss", "loss")
    training = renames.upgrade(manifest.recipe).get("training", {})
    findings = health.check_end(curve, training.get("max_grad_norm", TrainingSettings().max_grad_norm), name)
    key = f"validation/{name}"
    evaluations = [(line["step"], line[key]) for line in curve if key in line]
    if evaluations:
        vocab_size = files.read_json(folder / files.CONFIG)["vocab_size"]
        entropy = manifest.metrics.unigram_entropy
        learned = health.check_unigrams(evaluations, name, entropy, vocab_size, finished=True)
        findings += [learned] if learned.level != "ok" else []
    return [checkup.render(findings)] if findings else []
