"""`adapt_first`: pre-train the checkpoint on unlabeled text, and choose the checkpoint to fine-tune by a probe."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from headstart.adaptation.linear_probe import LinearProbe
from headstart.checkpoint.input_length import max_positions
from headstart.checkpoint.names import is_path
from headstart.core import artifact, config, registry
from headstart.core.errors import RecipeError
from headstart.core.log import logger
from headstart.corpus.read import readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.evaluation.cost import Meter
from headstart.stages.finetune.applicable import ADAPTING_OBJECTIVES
from headstart.stages.finetune.cell import build_learner, evaluate_untrained
from headstart.stages.finetune.cell_store import ADAPTED_KIND, RemoteCells
from headstart.stages.finetune.recipe import AdaptFirst
from headstart.stages.finetune.setup import Setup, with_checkpoint
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.snapshots import FOLDER, snapshots_of
from headstart.stages.runs.manifest import ADAPTED, AdaptedStart, PretrainManifest
from headstart.training.jsonl import read_jsonl

_PRETRAINING, _TEXTS = "pretraining", "texts.jsonl"
_SAMPLED_DOCUMENTS = 1000
_HELD_OUT_DOCUMENTS = 10
"""Documents that are expected to be held out, at least; a hash of their text selects them."""
_CHARACTERS_PER_TOKEN = 8
"""More than texts have, so that the held-out text fills a row."""


def adapted_setup(setup: Setup, output: Path, quiet: bool = False, store: RemoteCells | None = None) -> Setup:
    """Return the setup on the checkpoint that `adapt_first` chooses; without that section, the setup itself.

    The pre-training in `output` is resumed if it is unfinished, and a choice that was made before is kept. Its
    checkpoints, and what is chosen, are uploaded to the store.
    """
    section = setup.recipe.adapt_first
    if section is None:
        return setup
    target = output / ADAPTED
    if not artifact.is_complete(target):
        _choose(setup, section, target, quiet, None if store is None else store.pretraining_url())
        if store is not None:
            store.upload_finished()
    adapted = AdaptedStart.model_validate(artifact.verify(target, ADAPTED_KIND)["adapted"])
    path = target if adapted.step else setup.source.path
    return replace(with_checkpoint(setup, path), adapted=adapted)


def pretraining_recipe(
    setup: Setup, section: AdaptFirst, work: Path, checkpoint_store: str | None = None
) -> PretrainRecipe:
    """Return the recipe of the pre-training; the texts of the training rows are written to a file in `work`."""
    recipe, source = setup.recipe, setup.source
    seq_length = min(section.seq_length, max_positions(source.config) or section.seq_length)
    files = section.texts if isinstance(section.texts, list) else [str(_write_texts(setup, work))]
    column = section.text if isinstance(section.texts, list) else "text"
    training = {
        "budget": section.budget, "learning_rate": section.learning_rate, "seq_length": seq_length,
        "batch_tokens": section.batch_tokens, "eval_count": section.checkpoints,
        "precision": recipe.training.precision, "report_to": recipe.training.report_to,
        "save_interval_minutes": recipe.training.save_interval_minutes, "checkpoint_store": checkpoint_store,
    }  # fmt: skip
    raw: dict[str, Any] = {
        # A folder that several runs share must not depend on the seed of one.
        "seed": recipe.seed if section.folder is None else 0,
        "output": section.folder or work / _PRETRAINING,
        "corpus": {"files": files, "text": column, "validation": _held_out(files, column, seq_length)},
        # The folder of a name is in the cache of this machine; another machine may resume the run.
        "backbone": {"family": "checkpoint", "path": source.path if is_path(recipe.model) else recipe.model},
        "objective": {"name": ADAPTING_OBJECTIVES[source.family]},
        "training": training,
        "cost": config.to_dict(recipe.cost),
    }
    return config.fill(PretrainRecipe, raw, where="adapt_first")


def _write_texts(setup: Setup, work: Path) -> Path:
    """Write each text of the training rows once, as JSON lines."""
    columns = setup.splits.train.columns.values()
    texts = dict.fromkeys(text for values in columns for text in values if isinstance(text, str) and text.strip())
    work.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    artifact.write_whole(work / _TEXTS, "".join(lines))
    return work / _TEXTS


def _held_out(files: list[str], column: str, seq_length: int) -> float:
    """Return the fraction of the documents to hold out: 1 %, or what gives ten documents and a row of tokens."""
    readers.expand(files, "adapt_first.texts")
    documents = readers.documents(CorpusConfig(files=files, text=column), Receipt())
    lengths = [len(document.text) for document in islice(documents, _SAMPLED_DOCUMENTS)]
    if len(lengths) < 2:
        raise RecipeError(
            f"adapt_first.texts has {len(lengths)} document",
            allowed="At least two are needed: some are held out. In plain text, a blank line ends a document",
            do="Add texts, or divide the text by blank lines",
        )
    least = max(0.01, _HELD_OUT_DOCUMENTS / len(lengths), _CHARACTERS_PER_TOKEN * seq_length / sum(lengths))
    return round(min(0.5, least), 4)


def _choose(setup: Setup, section: AdaptFirst, target: Path, quiet: bool, checkpoint_store: str | None) -> None:
    """Pre-train, score the start and the checkpoints along the run by a probe, and copy the best to `target`."""
    recipe = pretraining_recipe(setup, section, target.parent, checkpoint_store)
    was_finished = section.folder is not None and artifact.is_complete(recipe.output)
    folder = pretrain.run(recipe, quiet, section.checkpoints)
    manifest = PretrainManifest.read(folder)
    paths = {0: setup.source.path, **snapshots_of(folder), manifest.progress.steps: folder}
    with Meter(config=setup.recipe.cost) as meter:
        scores, metric = {}, ""
        for step, path in paths.items():
            scores[step], metric = _probe_score(with_checkpoint(setup, path))
    # The earliest of equals: the start is preferred unless pre-training helps.
    step = max(scores, key=scores.__getitem__)
    adapted = AdaptedStart(
        step=step, scores=scores, metric=metric, losses=_losses(folder), tokens=manifest.progress.tokens,
        objective=registry.name_of("objectives", recipe.objective), is_counted=not was_finished,
        cost=manifest.cost + meter.tag(),
    )  # fmt: skip
    logger.info("%s", adapted.sentence())
    with artifact.staged(target, ADAPTED_KIND, adapted=adapted.model_dump()) as staging:
        if step:
            for name in artifact.read_manifest(paths[step])["files"]:
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(paths[step] / name, staging / name)
    if section.folder is None:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _probe_score(setup: Setup) -> tuple[float, str]:
    """Return the validation score of a linear probe on the setup's checkpoint, and the name of that score."""
    seed = setup.recipe.seed
    learner = build_learner(setup, LinearProbe(), setup.splits_for(seed), seed)
    scores = evaluate_untrained(learner, setup.recipe.training).validation
    metric, score = next(iter(scores.items()))
    return score, metric


def _losses(folder: Path) -> dict[int, float]:
    """Return the held-out loss at each evaluation of a pre-training run, by step."""
    lines = read_jsonl(folder / "logs" / "metrics.jsonl")
    return {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}
