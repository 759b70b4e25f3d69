"""Which of a recipe's methods can solve its task on its checkpoint."""

from __future__ import annotations

from typing import Any

from headstart.adaptation.linear_probe import LinearProbe
from headstart.core import registry
from headstart.core.config import Section
from headstart.core.contracts import Adaptation
from headstart.core.errors import RecipeError
from headstart.stages.finetune.recipe import FinetuneRecipe, methods_of
from headstart.tasks.source import CheckpointFolder

ADAPTING_OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm"}
"""The objective with which `adapt_first` pre-trains a checkpoint, by family."""


class AdaptationNotApplicable(RecipeError):
    """The recipe's own adaptation cannot solve its task on its checkpoint; `reason` is a clause without the names."""

    def __init__(self, reason: str, *arguments: Any, **parts: Any) -> None:
        """Keep the reason beside the whole message."""
        super().__init__(*arguments, **parts)
        self.reason = reason


def applicable_methods(
    recipe: FinetuneRecipe, source: CheckpointFolder
) -> tuple[dict[str, Section | None], dict[str, str]]:
    """Return the methods that can solve the task on this checkpoint, and the reason for each other one.

    Raises:
        AdaptationNotApplicable: the recipe's own adaptation is not among them.
    """
    methods: dict[str, Section | None] = {}
    left_out: dict[str, str] = {}
    for name, section in methods_of(recipe):
        reason: str | None = None
        if section is not None:
            adaptation: Adaptation = registry.build("adaptations", section)
            reason = adaptation.supports(source.task, source.family) or adaptation.supports_kind(source.kind)
        if reason is None:
            methods[name] = section
        elif section is recipe.adaptation:
            kind = registry.name_of("tasks", recipe.task)
            raise AdaptationNotApplicable(
                reason,
                f"adaptation {name!r} cannot be used for the task {kind!r} on {recipe.model} (family {source.family}, "
                f"type {source.kind}): {reason}",
                do="Choose another adaptation, task or checkpoint",
            )
        else:
            left_out[name] = reason
    return methods, left_out


def require_adaptable(recipe: FinetuneRecipe, source: CheckpointFolder) -> None:
    """Raise if the recipe has `adapt_first`, which the task or the checkpoint does not allow.

    Raises:
        AdaptationNotApplicable: the checkpoints cannot be compared by a linear probe, or cannot be pre-trained.
    """
    if recipe.adapt_first is None:
        return
    reason = LinearProbe().supports(source.task, source.family)
    if reason is None and source.family not in ADAPTING_OBJECTIVES:
        reason = f"only the families {' and '.join(ADAPTING_OBJECTIVES)} are pre-trained further"
    if reason is not None:
        kind = registry.name_of("tasks", recipe.task)
        raise AdaptationNotApplicable(
            reason,
            f"adapt_first cannot be used for the task {kind!r} on {recipe.model} (family {source.family}): {reason}",
            allowed="Its checkpoints are compared by a linear probe on the mean of the states",
            do="Remove adapt_first; `headstart pretrain` continues any checkpoint",
        )
