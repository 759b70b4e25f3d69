"""What a recipe pre-trains: its objective, its tokenizer and its networks, new or a checkpoint's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headstart.backbones.checkpoint import Checkpoint
from headstart.core import registry
from headstart.core.contracts import Backbone, Objective
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import integer
from headstart.tasks.source import family_of, require_checkpoint
from headstart.tokens import tokenizer
from headstart.tokens.tokenizer import TokenizerConfig
from headstart.training.compilation import choose_attention
from headstart.training.world import World

if TYPE_CHECKING:
    from headstart.stages.pretrain.recipe import PretrainRecipe


def objective_of(recipe: PretrainRecipe) -> Objective:
    """Build the objective, and check that it trains the family before anything is prepared for it."""
    objective: Objective = registry.build("objectives", recipe.objective)
    section: Any = recipe.backbone
    family, held = section.family, f"the family {section.family!r}"
    if isinstance(section, Checkpoint.Config):
        path = require_checkpoint(Checkpoint(section).path, "backbone.path")
        config = Checkpoint(section).config_of()
        family = family_of(config)
        held = f"{path}, which holds a {config.model_type!r} of the family {family or 'none'}"
    if family not in objective.families:
        raise RecipeError(
            f"objective {recipe.objective.name!r} does not train {held}",  # type: ignore[attr-defined]
            allowed=f"It fits: {', '.join(objective.families)}",
            do="Choose another objective, or another backbone",
        )
    if isinstance(section, Checkpoint.Config):
        Checkpoint(section).require_fitting(recipe.training.longest)
    if recipe.warm_start is not None:
        _require_new_vectors(recipe)
    return objective


def _require_new_vectors(recipe: PretrainRecipe) -> None:
    """Raise where token vectors would be counted for a network that starts with learnt ones."""
    section = recipe.backbone
    if isinstance(section, Checkpoint.Config):
        learnt, do = str(section.path), "Leave out warm_start"
    elif getattr(recipe.objective, "initialise", False):
        learnt, do = "objective.teacher", "Leave out warm_start, or set objective.initialise to false"
    else:
        return
    raise RecipeError(
        f"warm_start is set, and {learnt} has learnt its token vectors",
        allowed="It gives a new network its first ones",
        do=do,
    )


def require_shardable(recipe: PretrainRecipe, objective: Objective, world: World) -> None:
    """Raise where processes would shard the weights and wait for each other's forward passes in vain."""
    if recipe.training.parallel == "fsdp" and world.size > 1 and not getattr(objective, "same_passes", True):
        raise RecipeError(
            f"objective {recipe.objective.name!r} makes as many forward passes as the rows of a process ask for, "  # type: ignore[attr-defined]
            "and training.parallel is fsdp",
            allowed="Processes that shard the weights make every pass together",
            do="Set training.parallel to ddp, or train by one objective",
        )


def tokenizer_of(recipe: PretrainRecipe) -> TokenizerConfig:
    """Return the tokenizer's settings, with the folder of a checkpoint's own where the recipe names none."""
    settings, section = recipe.tokenizer, recipe.backbone
    if isinstance(section, Checkpoint.Config) and settings.path is None:
        settings = settings.model_copy(update={"path": section.path})
    if settings.extend is not None and settings.path is None:
        raise RecipeError(
            f"tokenizer.extend is {settings.extend}, and there is no tokenizer to extend",
            allowed="A tokenizer that is trained anew knows the corpus's words; tokenizer.vocab_size is its size",
            do="Leave out tokenizer.extend, or set tokenizer.path or backbone.path",
        )
    return settings


def build_model(recipe: PretrainRecipe, vocabulary: Vocabulary, objective: Objective) -> torch.nn.Module:
    """Build what is trained: the objective's networks, new by the recipe's backbone and seed, or a checkpoint's."""
    backbone: Backbone = registry.build("backbones", recipe.backbone)

    def make(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        own = backbone.companion(part) if isinstance(backbone, Checkpoint) else backbone
        return own.build(vocabulary, recipe.training.longest, auto_class, scale, **changes)

    torch.manual_seed(integer(recipe.seed, 0, 0, "initial weights"))
    module = objective.assemble(make)
    for part in objective.parts(module).values():
        choose_attention(part)
    return module


def longest_row(recipe: PretrainRecipe, given: PreTrainedTokenizerFast) -> int:
    """Return how many tokens the network can read at once, for its tokenizer to know."""
    section = recipe.backbone
    if isinstance(section, Checkpoint.Config):
        return Checkpoint(section).max_length() or given.model_max_length
    return int(getattr(section, "max_length", recipe.training.longest))


def require_same_tokens(recipe: PretrainRecipe, given: PreTrainedTokenizerFast) -> None:
    """Raise unless a checkpoint's tokens have the ids that its own tokenizer gives them."""
    section = recipe.backbone
    path = section.path if isinstance(section, Checkpoint.Config) else None
    if path is None or not (path / "tokenizer.json").is_file():
        return
    ids = given.get_vocab()
    for token, number in tokenizer.load(path).get_vocab().items():
        if ids.get(token) != number:
            raise RecipeError(
                f"tokenizer.path gives {token!r} the id {ids.get(token)}, {path} the id {number}",
                allowed="A checkpoint's vectors belong to the tokens of its own tokenizer",
                do="Leave out tokenizer.path; tokenizer.extend adds the words of another domain",
            )
