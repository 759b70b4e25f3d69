"""One cell of a run: one method with one seed, from checkpoint to test predictions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headstart.adaptation.on_top import learned_mixture
from headstart.checkpoint.silence import silenced
from headstart.core import artifact, registry
from headstart.core.config import Section
from headstart.core.contracts import Adaptation, Task
from headstart.core.data import Examples, Feature, Split
from headstart.evaluation import metrics
from headstart.evaluation.cost import CostConfig, Meter
from headstart.stages.finetune.base_model import record_base, save_network
from headstart.stages.finetune.data import Splits
from headstart.stages.finetune.error_page import SCORES, write_scores
from headstart.stages.finetune.learner import (
    FittedLearner,
    TaskLearner,
    build_loop,
    count_parameters,
    count_trainable,
    frozen_bodies,
    run_model,
)
from headstart.stages.finetune.recipe import settings_of
from headstart.stages.finetune.result import MethodDetails, MethodResult, cell_name
from headstart.stages.finetune.setup import Setup
from headstart.stages.runs.checkpoint_store import RemoteCheckpoints, UploadCallback
from headstart.stages.runs.machine import attention_of, record_machine
from headstart.stages.runs.meter import RecordedMeter
from headstart.tasks.decision import scale_output
from headstart.tasks.embed import Embed
from headstart.tasks.source import unwrap_peft
from headstart.training import precision
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.checkpoint import Progress
from headstart.training.compilation import choose_attention
from headstart.training.loop import RunInfo, TrainResult
from headstart.training.settings import TrainingSettings
from headstart.training.trackers import reporting_callbacks
from headstart.training.world import World

_WITHOUT_LAYERS = ("scratch", "embeddings_only")
"""Methods that take no layer from the checkpoint, and so have nothing to forget."""


@dataclass(frozen=True)
class MethodRequest:
    """One method with one seed of a run."""

    setup: Setup
    method: str
    section: Section | None
    """The settings of an adaptation; None for a baseline."""
    seed: int
    work: Path
    """The folder for checkpoints, logs and costs. A request with the same folder resumes there."""
    fingerprint: str
    """Identifies the run in its checkpoints; checkpoints of another run are not resumed."""
    save_model_to: Path | None = None
    quiet: bool = False
    world: World = field(default_factory=World)
    """The processes that train together. Rank 0 calls `run_method`, the others `assist`."""
    store: RemoteCheckpoints | None = None
    """Where checkpoints are uploaded to, on rank 0."""

    @property
    def name(self) -> str:
        """The name of the method with its seed, by which its files are found again."""
        return cell_name(self.method, self.seed)


def run_method(request: MethodRequest) -> MethodResult:
    """Run one method with one seed: train or fit, predict the test rows, measure forgetting, save the model.

    Raises:
        NotApplicable: a baseline cannot predict such rows.
    """
    setup, seed = request.setup, request.seed
    if request.section is None:
        return run_baseline(setup.task, setup.splits_for(seed), request.method, seed, setup.recipe.cost)
    result, model = train_method(request, request.section)
    if setup.probe is not None and request.method not in _WITHOUT_LAYERS:
        details = replace(result.details, forgetting=setup.probe.forgetting(model))
        result = replace(result, details=details)
    if request.save_model_to is not None:
        save_model(setup, model, request.save_model_to)
    return result


def save_model(setup: Setup, model: PreTrainedModel, folder: Path) -> None:
    """Publish a trained model in a folder, without the tokenizer."""
    with artifact.staged(folder, "model") as staging, silenced():
        # sentence-transformers, which opens the models of `embed`, would read the base's main branch by its name.
        name = str(setup.source.path) if isinstance(setup.task, Embed) else setup.recipe.model
        record_base(model, name, setup.source.path)
        setup.task.save(model, setup.spec, staging.path)
        save_network(model, staging.path)


def assist(request: MethodRequest, section: Section) -> None:
    """Take part in the training of one method, as a rank other than 0, which predicts, saves and reports."""
    setup = request.setup
    settings, splits = settings_of(setup.recipe.training, section), setup.splits_for(request.seed)
    with RecordedMeter(request.work / "cost.json", setup.recipe.cost, world=request.world) as meter:
        adaptation: Adaptation = registry.build("adaptations", section)
        learner = build_learner(setup, adaptation, splits, request.seed, setup.unlabeled_for(section))
        if count_trainable(learner.model):
            train(request, settings, learner, meter)


def run_baseline(task: Task, splits: Splits, method: str, seed: int, cost: CostConfig) -> MethodResult:
    """Fit one baseline and predict the test rows.

    Raises:
        NotApplicable: the baseline cannot predict such rows.
    """
    names = task.metrics()
    with Meter(config=cost, energy=False) as meter:
        baseline = registry.resolve("baselines", method)(
            splits.train, splits.validation, splits.test, metric=names[0], seed=seed
        )
    test = metrics.compute(names, splits.test.labels, baseline.predictions)
    details = MethodDetails(train_rows=len(splits.train), chosen=baseline.chosen)
    return MethodResult(method, seed, list(baseline.predictions), test, details=details, cost=meter.tag())


def train_method(request: MethodRequest, section: Section) -> tuple[MethodResult, PreTrainedModel]:
    """Train one adaptation with one seed, keep the best weights by validation, and predict the test rows once."""
    setup, seed, work = request.setup, request.seed, request.work
    adaptation: Adaptation = registry.build("adaptations", section)
    settings = settings_of(setup.recipe.training, section)
    splits = setup.splits_for(seed)
    if request.store is not None:
        request.store.restore(request.fingerprint)
    with RecordedMeter(work / "cost.json", setup.recipe.cost, world=request.world) as meter:
        work.mkdir(parents=True, exist_ok=True)
        record_machine(work, settings)
        learner = build_learner(setup, adaptation, splits, seed, setup.unlabeled_for(section))
        if count_trainable(learner.model):
            trained, flops = train(request, settings, learner, meter)
            if settings.shards_weights and request.world.size > 1:
                learner = _whole(request, adaptation, splits, section, learner)
        else:
            trained = evaluate_untrained(learner, settings)
            flops = sum(body.flops for body in frozen_bodies(learner.model))
        result, model = measure(request, settings, learner, learner.model, trained)
        meter.set_totals(trained.progress.tokens, flops)
    return replace(result, cost=meter.tag()), model


def measure(
    request: MethodRequest, settings: TrainingSettings, learner: TaskLearner, model: PreTrainedModel,
    trained: TrainResult,
) -> tuple[MethodResult, PreTrainedModel]:  # fmt: skip
    """Finish a trained model and predict the test rows once; returns the result without its cost, and the model."""
    setup, task, work = request.setup, request.setup.task, request.work
    splits = setup.splits_for(request.seed)
    test = setup.rows.encode("test", splits.test)
    trainable, parameters = count_trainable(model) + learner.fitted_parameters, count_parameters(model)
    progress = trained.progress
    model = learner.adaptation.finish(model)
    with request.world.all_threads(), _autocast(model, settings):
        decision, validation = _fit_decision(setup, model, learner, trained.validation)
        started = time.perf_counter()
        outputs = run_model(model, task, test, setup.spec)
        predict_seconds = time.perf_counter() - started
        predictions = task.decode(outputs, test, setup.spec)
    details = MethodDetails(
        train_rows=len(splits.train), trainable_parameters=trainable, parameters=parameters, steps=progress.step,
        best_step=progress.best_step, learning_rate=settings.learning_rate,
        architecture=type(unwrap_peft(model)).__name__, notes=task.notes(test),
        truncated=_count_truncated(setup, splits, learner, test),
        attention=attention_of(unwrap_peft(model)), decision=decision,
        overlap=[overlap.model_dump() for overlap in setup.overlaps], mixture=learned_mixture(model),
        predict_seconds=predict_seconds, adapted={} if setup.adapted is None else setup.adapted.model_dump(),
    )  # fmt: skip
    if request.save_model_to is not None:
        write_scores(work / SCORES, task.scores(outputs, test, setup.spec))
    scores = metrics.compute(task.metrics(), splits.test.labels, predictions)
    return MethodResult(request.method, request.seed, predictions, scores, validation, details), model


def _whole(
    request: MethodRequest, adaptation: Adaptation, splits: Splits, section: Section, trained: TaskLearner
) -> TaskLearner:
    """Return a new learner with the weights of a trained one, whose model can only run in all processes together."""
    setup = request.setup
    learner = build_learner(setup, adaptation, splits, request.seed, setup.unlabeled_for(section))
    learner.module.load_state_dict(trained.module.state_dict())
    learner.module.to(next(trained.module.parameters()).device)
    return learner


def train(
    request: MethodRequest, settings: TrainingSettings, learner: FittedLearner, meter: RecordedMeter
) -> tuple[TrainResult, float]:
    """Train on all ranks; returns the result and the FLOPs of all ranks, also those of frozen bodies."""
    world, batch_size = request.world, request.setup.recipe.training.batch_size
    callbacks: list[Callback] = default_callbacks(settings, keep_best=True)
    if world.is_main:
        callbacks += reporting_callbacks(f"{request.method} seed {request.seed}", settings.report_to, request.quiet)
    uploads = []
    if request.store is not None:
        uploads = [UploadCallback(request.store, settings.save_total_limit, settings.save_keep_steps)]
    info = RunInfo(request.work, request.fingerprint, request.seed)
    loop = build_loop(learner, settings, batch_size, info, [*callbacks, meter, *uploads], world)
    loop.restore()
    trained = loop.run()
    if world.is_main:
        # The best weights are not always the last ones.
        learner.solve()
    (frozen,) = world.all_reduce_sum(sum(body.flops for body in frozen_bodies(learner.model)))
    return trained, trained.progress.flops + frozen


def _fit_decision(
    setup: Setup, model: PreTrainedModel, learner: TaskLearner, scores: dict[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose temperature and threshold on the validation rows; returns them and the validation scores with them."""
    task = setup.task
    if not task.has_decision:
        return {}, scores
    outputs = run_model(model, task, learner.validation, setup.spec)
    chosen = task.fit_decision(outputs, learner.gold)
    if "temperature" in chosen:
        scale_output(model, len(task.labels), 1 / chosen["temperature"])
        outputs = run_model(model, task, learner.validation, setup.spec)
    task.set_decision(chosen)
    predictions = task.decode(outputs, learner.validation, setup.spec)
    return chosen, metrics.with_selection(task.metrics(), learner.gold, predictions)


def _count_truncated(setup: Setup, splits: Splits, learner: TaskLearner, test: Sequence[Feature]) -> dict[str, int]:
    """Return the number of rows of each split whose texts were truncated."""
    encoded: dict[Split, tuple[Examples, Sequence[Feature]]] = {"train": (splits.train, learner.train)}
    if not setup.task.learns:
        encoded = {}
    encoded |= {"validation": (splits.validation, learner.validation), "test": (splits.test, test)}
    return setup.truncation.count(setup.task, setup.spec, encoded)


def build_learner(
    setup: Setup, adaptation: Adaptation, splits: Splits, seed: int, texts: Examples | None = None
) -> TaskLearner:
    """Return the model of an adaptation with one seed, and the encoded rows that it learns from.

    `texts` are rows without labels that it learns from as well.
    """
    task = setup.task
    task.show(splits.train, seed)
    # The task may hold the threshold of another seed.
    task.set_decision({})
    train = setup.rows.encode("train", splits.train) if task.learns else []
    validation = setup.rows.encode("validation", splits.validation)
    unlabeled = [] if texts is None else setup.rows.encode("unlabeled", texts)
    model = adaptation.adapt(setup.source.with_task(task, seed))
    task.prepare_head(model)
    choose_attention(model, precision.default_device(setup.recipe.training.device))
    return TaskLearner(model, task, adaptation, setup.spec, train, validation, splits.validation.labels, unlabeled)


def evaluate_untrained(learner: TaskLearner, settings: TrainingSettings) -> TrainResult:
    """Score the validation rows with a model that has no trainable parameters."""
    learner.module.to(precision.default_device(settings.device))
    with _autocast(learner.model, settings):
        return TrainResult(Progress(), learner.validate())


def _autocast(model: PreTrainedModel, settings: TrainingSettings) -> AbstractContextManager[object]:
    device = next(model.parameters()).device
    return precision.autocast(precision.resolve(settings.precision, device), device)
