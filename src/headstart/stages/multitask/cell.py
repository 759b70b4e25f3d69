"""The joint training of all tasks with one seed, whose results are those of a method in each task's run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.core import artifact, registry
from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.stages.finetune.cell import (
    MethodRequest,
    build_learner,
    measure,
    save_model,
    train,
)
from headstart.stages.finetune.learner import TaskLearner
from headstart.stages.finetune.recipe import settings_of
from headstart.stages.finetune.result import cell_name
from headstart.stages.finetune.run import cell_folder, copy_logs, model_folder, write_cell
from headstart.stages.finetune.setup import Setup
from headstart.stages.multitask.learner import MultitaskLearner, scores_of
from headstart.stages.multitask.recipe import MultitaskRecipe
from headstart.stages.multitask.sharing import have_one_head
from headstart.stages.runs.folder import RunFolder
from headstart.stages.runs.machine import record_machine
from headstart.stages.runs.meter import RecordedMeter
from headstart.training.loop import TrainResult
from headstart.training.world import World


@dataclass(frozen=True)
class TaskRun:
    """One task of a run: its setup and its folder."""

    setup: Setup
    folder: RunFolder


def build_multitask(recipe: MultitaskRecipe, setups: Mapping[str, Setup], seed: int) -> MultitaskLearner:
    """Return the networks of all tasks with one seed, which share a body, and the rows that they learn from."""
    learners = {
        name: build_learner(
            setup, registry.build("adaptations", recipe.adaptation), setup.splits_for(seed), seed
        )
        for name, setup in setups.items()
    }  # fmt: skip
    first = next(iter(setups.values()))
    one_head = have_one_head([setup.task for setup in setups.values()], first.source.family)
    _require_no_teacher(recipe)
    weights = {name: entry.weight for name, entry in recipe.tasks.items()}
    weighted = next((name for name, weight in weights.items() if weight != 1), None)
    if one_head and weighted is not None:
        raise RecipeError(
            f"tasks.{weighted}.weight is {weights[weighted]:g}, but the tasks have no heads: they are rows of one "
            "text-to-text task",
            allowed="The loss is then the mean over all target tokens",
            do="Remove the weights; `mixing` sets how often each task is drawn",
        )
    _require_rows(learners)
    shares = recipe.mixing.shares({name: len(learner) for name, learner in learners.items()})
    return MultitaskLearner(learners, shares, weights, one_head)


def _require_rows(learners: Mapping[str, TaskLearner]) -> None:
    """Raise if a task or the adaptation reads no training rows, such as prompts."""
    for name, learner in learners.items():
        if not len(learner):
            raise RecipeError(
                f"tasks.{name} has nothing to train: its task or the adaptation reads no training rows",
                allowed="Tasks in one run are trained together",
                do="Run `headstart finetune` with that task alone",
            )


def _require_no_teacher(recipe: MultitaskRecipe) -> None:
    """Raise if the adaptation has one teacher, which knows the labels of one task."""
    teacher = getattr(recipe.adaptation, "teacher", None)
    if teacher is not None:
        raise RecipeError(
            f"adaptation.teacher is {teacher}, but there are {len(recipe.tasks)} tasks",
            allowed="A teacher knows the labels of one task",
            do="Distill each task alone, or choose another adaptation",
        )


def run_seed(
    recipe: MultitaskRecipe, runs: Mapping[str, TaskRun], seed: int, folder: RunFolder, quiet: bool, world: World
) -> None:
    """Train all tasks with one seed; write each task's model and result into its folder, as finished cells of its run.

    Does nothing if all of them are finished. Every rank calls this.
    """
    section = recipe.adaptation
    method = next(iter(runs.values())).setup.chosen
    work = folder.path / "work" / cell_name(method, seed)
    requests = {
        name: _request(run, section, seed, work / name, folder.fingerprint, quiet, world)
        for name, run in runs.items()
    }  # fmt: skip
    done = [artifact.is_complete(cell_folder(runs[name].folder.path, request)) for name, request in requests.items()]
    if world.broadcast(all(done)):
        return
    settings = settings_of(recipe.training, section)
    with RecordedMeter(work / "cost.json", recipe.cost, world=world) as meter:
        work.mkdir(parents=True, exist_ok=True)
        if world.is_main:
            record_machine(work, settings)
        learner = build_multitask(recipe, {name: run.setup for name, run in runs.items()}, seed)
        # The loop reads the folder, the seed and the batch size of a request, which are those of every task.
        joint = replace(next(iter(requests.values())), work=work)
        trained, flops = train(joint, settings, learner, meter)
        if not world.is_main:
            return
        results = []
        for name, request in requests.items():
            request.work.mkdir(exist_ok=True)
            own = learner.learners[name]
            # A copy: `finish` may change weights that the other tasks share.
            model = copy.deepcopy(own.model)
            outcome = TrainResult(trained.progress, scores_of(name, trained.validation), trained.resumed_from)
            result, model = measure(request, settings, own, model, outcome)
            result = replace(result, details=replace(result.details, share=learner.shares[name]))
            save_model(request.setup, model, model_folder(runs[name].folder, seed))
            results.append((name, request, result))
        meter.set_totals(trained.progress.tokens, flops)
    copy_logs(work, folder.path / "logs" / work.name)
    for name, request, result in results:
        write_cell(runs[name].folder.path, request, replace(result, cost=meter.tag()))


def seeds_of(recipe: MultitaskRecipe) -> Sequence[int]:
    """Return the seeds of a run."""
    return range(recipe.seed, recipe.seed + recipe.seeds)


def _request(
    run: TaskRun, section: Section, seed: int, work: Path, fingerprint: str, quiet: bool, world: World
) -> MethodRequest:
    """Return the request of one task, which saves its model."""
    return MethodRequest(
        run.setup, run.setup.chosen, section, seed, work, fingerprint, model_folder(run.folder, seed), quiet, world
    )
