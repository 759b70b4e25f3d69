"""How a checkpoint framed its texts, from what its folder records."""

from __future__ import annotations

from pathlib import Path

from headstart.core import artifact, registry
from headstart.core.contracts import Objective
from headstart.stages.pretrain.reopen import recorded_recipe
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.tasks.framing import Framing

_ANY_LENGTH = 64


def framing_of(folder: Path) -> Framing:
    """Return whether [CLS] is before sources and targets: in pre-training, or in the fine-tuning of a finished model.

    Headstart's objectives never train a decoder to write [CLS]. For a checkpoint from elsewhere, the tokenizer decides.
    """
    recipe = recorded_recipe(folder)
    if recipe is not None:
        objective: Objective = registry.build("objectives", recipe.objective)
        return Framing(objective.row_shape(_ANY_LENGTH).add_cls, target_cls=False)
    if artifact.is_complete(folder) and artifact.read_manifest(folder).get("kind") == FinetuneManifest.KIND:
        return Framing(target_cls=FinetuneManifest.read(folder).target_cls)
    return Framing()
