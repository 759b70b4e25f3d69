"""Builds what a recipe pre-trains: its objective, its tokenizer settings, its networks (new or from a checkpoint)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headstart.backbones.checkpoint import Checkpoint
from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config, registry, renames
from headstart.core.contracts import Backbone, Objective
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.log import logger
from headstart.core.randomness import integer
from headstart.core.vocabulary import language_token
from headstart.corpus.read import mixture
from headstart.corpus.read.built import BuiltCorpus
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tasks.source import family_of, require_checkpoint
from headstart.tokens import tokenizer
from headstart.tokens.settings import TokenizerConfig
from headstart.training import precision
from headstart.training.compilation import choose_attention
from headstart.training.deferred import NotDeferrable, deferred
from headstart.training.world import World


def objective_of(recipe: PretrainRecipe) -> Objective:
    """Build the objective, and check that it can train the backbone before any text is prepared."""
    objective: Objective = registry.build("objectives", recipe.objective)
    section: Any = recipe.backbone
    family, described = section.family, f"the family {section.family!r}"
    if isinstance(section, Checkpoint.Config):
        path = require_checkpoint(Checkpoint(section).path, "backbone.path")
        config = Checkpoint(section).config_of()
        family = family_of(config)
        described = f"{path}, which is a {config.model_type!r} of the family {family or 'none'}"
    if family not in objective.families:
        # prefix_lm trains several families, but one at a time: its field `family` selects it.
        selectable = "family" in type(recipe.objective).model_fields and family in type(objective).families
        raise RecipeError(
            f"objective {registry.name_of('objectives', recipe.objective)!r} does not train {described}",
            allowed=f"It trains: {', '.join(objective.families)}",
            do=f"Set `objective.family: {family}`" if selectable else "Choose another objective or another backbone",
        )
    if isinstance(section, Checkpoint.Config):
        Checkpoint(section).require_fitting(recipe.training.longest)
    if recipe.warm_start is not None:
        _require_new_embeddings(recipe)
    return objective


def _require_new_embeddings(recipe: PretrainRecipe) -> None:
    """Raise if warm_start would overwrite embeddings that have been trained."""
    section = recipe.backbone
    if isinstance(section, Checkpoint.Config):
        trained, do = str(section.path), "Remove warm_start"
    elif getattr(recipe.objective, "initialize", False):
        trained, do = "objective.teacher", "Remove warm_start, or set objective.initialize to false"
    else:
        return
    raise RecipeError(
        f"warm_start is set, but {trained} has trained token embeddings",
        allowed="warm_start sets the first embeddings of a new network",
        do=do,
    )


def require_shardable(recipe: PretrainRecipe, objective: Objective, world: World) -> None:
    """Raise if processes would shard the weights but make different numbers of forward passes, and so deadlock."""
    if recipe.training.shards_weights and world.size > 1 and not getattr(objective, "same_passes", True):
        raise RecipeError(
            f"training.parallel is {recipe.training.parallel}, but with objective "
            f"{registry.name_of('objectives', recipe.objective)!r} the number of forward passes depends on the rows of "
            "each process",
            allowed="Processes that shard the weights must make the same forward passes",
            do="Set training.parallel to ddp, or train with a single objective",
        )


def tokenizer_of(recipe: PretrainRecipe) -> TokenizerConfig:
    """Return the tokenizer settings; the tokenizer of a finished corpus or of a checkpoint is set as their `path`."""
    corpus = _tokenized_corpus(recipe)
    if corpus is not None:
        _require_same_settings(recipe, corpus)
        return TokenizerConfig(path=corpus.tokenizer)
    settings, section = recipe.tokenizer or TokenizerConfig(), recipe.backbone
    path = section.path if isinstance(section, Checkpoint.Config) and settings.path is None else settings.path
    if path is not None:
        settings = settings.model_copy(update={"path": folder_of(path)})
    if settings.extend is not None and settings.path is None:
        raise RecipeError(
            f"tokenizer.extend is {settings.extend}, but there is no tokenizer to extend",
            allowed="A new tokenizer learns the corpus's words; tokenizer.vocab_size sets its size",
            do="Remove tokenizer.extend, or set tokenizer.path or backbone.path",
        )
    return settings


def _tokenized_corpus(recipe: PretrainRecipe) -> BuiltCorpus | None:
    """Return the finished corpus whose tokenizer the run uses, or None; several must have the same tokenizer."""
    corpora = [part for part in mixture.built_parts(recipe.corpus) if part.tokenizer is not None]
    identities = {_identity(part.tokenizer): part for part in corpora}
    if len(identities) > 1:
        first, second = [part.location for part in identities.values()][:2]
        raise RecipeError(
            f"{first} and {second} have different tokenizers",
            allowed="A run has one tokenizer",
            do="Build one corpus with `tokenizer.path` set to the tokenizer of the other",
        )
    return corpora[0] if corpora else None


def _require_same_settings(recipe: PretrainRecipe, corpus: BuiltCorpus) -> None:
    """Raise if the recipe has a tokenizer section that differs from the one its corpus was tokenized with."""
    settings = recipe.tokenizer
    if settings is None:
        return
    if (
        settings.path is not None
        and settings.extend is None
        and _identity(folder_of(settings.path)) == _identity(corpus.tokenizer)
    ):
        return
    saved = config.expand_saved(corpus.manifest()["recipe"], corpus.local)
    used = TokenizerConfig.model_validate(renames.upgrade(saved)["tokenizer"])
    differing = next(
        (key for key in TokenizerConfig.model_fields if getattr(settings, key) != getattr(used, key)), None
    )
    if differing is not None:
        raise RecipeError(
            f"tokenizer.{differing} is {getattr(settings, differing)}, but {corpus.location} was tokenized with "
            f"{getattr(used, differing)}",
            allowed="A corpus with token shards is read with its own tokenizer",
            do="Remove the tokenizer section, or build the corpus again without one",
        )


def _identity(folder: Path | None) -> str:
    return artifact.identity(folder) if folder is not None and folder.is_dir() else ""


def build_sharded(
    recipe: PretrainRecipe, vocabulary: Vocabulary, objective: Objective, count: Callable[[torch.nn.Module], object]
) -> torch.nn.Module:
    """Build the module as `build_model` does, if possible without its weights, which are computed shard by shard.

    A network from a checkpoint is loaded, and one that cannot be initialized or counted without its weights is built.
    `count` computes what the run needs to know of the module.
    """
    section: Any = recipe.backbone
    if isinstance(section, Checkpoint.Config) or recipe.warm_start is not None or hasattr(recipe.objective, "teacher"):
        return build_model(recipe, vocabulary, objective)
    try:
        with deferred():
            module = build_model(recipe, vocabulary, objective)
        count(module)
    except (NotDeferrable, NotImplementedError, RuntimeError) as error:
        logger.info("each process builds the whole network before it is sharded: %s", error)
        return build_model(recipe, vocabulary, objective)
    return module


def special_tokens_of(recipe: PretrainRecipe, objective: Objective) -> list[str]:
    """Return the special tokens that a run adds to its tokenizer: those of the objective and of the languages."""
    return [*objective.special_tokens(), *map(language_token, mixture.languages_of(recipe.corpus))]


def build_model(recipe: PretrainRecipe, vocabulary: Vocabulary, objective: Objective) -> torch.nn.Module:
    """Build the module to train: the objective's networks, new from the recipe's seed or loaded from a checkpoint."""
    backbone: Backbone = registry.build("backbones", recipe.backbone)

    def make(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        own = backbone.companion(part) if isinstance(backbone, Checkpoint) else backbone
        return own.build(vocabulary, recipe.training.longest, auto_class, scale, **changes)

    torch.manual_seed(integer(recipe.seed, 0, 0, "initial weights"))
    module = objective.assemble(make)
    for network in objective.parts(module).values():
        choose_attention(network, precision.default_device(recipe.training.device))
    return module


def max_length_of(recipe: PretrainRecipe, loaded: PreTrainedTokenizerFast) -> int:
    """Return the number of tokens that the network can read, for its tokenizer to truncate to."""
    section = recipe.backbone
    if isinstance(section, Checkpoint.Config):
        return Checkpoint(section).max_length() or loaded.model_max_length
    return int(getattr(section, "max_length", recipe.training.longest))


def require_same_tokens(recipe: PretrainRecipe, loaded: PreTrainedTokenizerFast) -> None:
    """Raise unless the tokens of a checkpoint's tokenizer have the same ids in the loaded one."""
    section = recipe.backbone
    path = Checkpoint(section).path if isinstance(section, Checkpoint.Config) else None
    if path is None or not (path / "tokenizer.json").is_file():
        return
    ids = loaded.get_vocab()
    for token, token_id in tokenizer.load(path).get_vocab().items():
        if ids.get(token) != token_id:
            raise RecipeError(
                f"the id of {token!r} is {ids.get(token)} in the run's tokenizer, but {token_id} in {path}",
                allowed="A checkpoint's embeddings belong to the tokens of its own tokenizer",
                do="Remove tokenizer.path; tokenizer.extend adds the words of another domain. A corpus with token "
                "shards must be built with the checkpoint's tokenizer",
            )
