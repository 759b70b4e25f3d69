"""What fine-tuning in several processes refuses, and where its result differs from that of one process."""

from __future__ import annotations

import math

from headstart.adaptation.contrast import Contrast
from headstart.core import artifact, registry
from headstart.core.errors import RecipeError
from headstart.core.log import logger
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.finetune.setup import Setup
from headstart.stages.runs.manifest import ADAPTED
from headstart.tasks.embed import Embed
from headstart.training.batches import count_micro_batches
from headstart.training.world import World


def require_processes(recipe: FinetuneRecipe, world: World) -> None:
    """Raise if several processes were started for a recipe that one process must run."""
    if world.size == 1:
        return
    if recipe.adapt_first is not None and not artifact.is_complete(recipe.output / ADAPTED):
        raise RecipeError(
            f"the recipe has `adapt_first`, but {world.size} processes were started",
            allowed="One process pre-trains and compares the checkpoints; several can fine-tune the chosen one",
            do="Start the run with one process. Or pre-train with `headstart pretrain --processes`, set `model` to the "
            "result and remove `adapt_first`",
        )


def require_shardable(setup: Setup, world: World) -> None:
    """Raise if processes would shard the weights of a method that needs them whole."""
    training = setup.recipe.training
    if world.size == 1 or not training.shards_weights:
        return
    for method, section in setup.methods.items():
        reason = "" if section is None else registry.build("adaptations", section).needs_whole_weights
        if reason:
            raise RecipeError(
                f"`training.parallel` is {training.parallel}, but {method} {reason}",
                allowed="Sharded weights are gathered only while the network computes the loss or predicts",
                do="Set `training.parallel` to ddp, or leave this method out",
            )


def warn_about_processes(setup: Setup, world: World) -> None:
    """Log which methods compare the rows of a batch with each other, so that their result depends on its parts."""
    if world.size == 1:
        return
    ranking = isinstance(setup.task, Embed) and setup.task.config.loss == "ranking"
    for method, section in setup.methods.items():
        if section is None or not (ranking or isinstance(section, Contrast.Config)):
            continue
        batch = setup.recipe.training.batch_size
        micro = settings_of(setup.recipe.training, section).micro_batch_size or batch
        own = math.ceil(batch / count_micro_batches(batch, micro, world.size))
        what = "task.loss is ranking" if ranking else f"adaptation {registry.name_of('adaptations', section)!r}"
        logger.warning(
            "%s compares the texts of a batch with each other: each of %d processes compares only its own. The result "
            "of %s is that of one process with training.micro_batch_size %d, not of one with whole batches of %d",
            what, world.size, method, own, batch,
        )  # fmt: skip
