"""The parts of a recipe are checked against each other before its text is prepared."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import RunFolder
from headstart.training.world import World


@pytest.fixture
def trained(recipe_of, tmp_path, monkeypatch):
    """Starts training as one of two processes; raises EOFError where the text would be prepared."""
    (tmp_path / "text.txt").write_text("In the beginning.", encoding="utf-8")

    def prepare(*_, **__):
        raise EOFError

    monkeypatch.setattr(World, "main_first", lambda self: nullcontext())
    monkeypatch.setattr(pretrain, "prepare", prepare)

    def begin(parallel: str, **sections):
        raw = recipe_of["pretrain"](tmp_path, **sections)
        raw["training"] = {**raw["training"], "parallel": parallel}
        recipe = config.fill(PretrainRecipe, raw)
        with RunFolder(recipe.output, recipe, {}) as folder:
            pretrain._train(recipe, folder, World(0, 2), quiet=True, snapshots=0, store=None)

    return begin


def test_a_mixture_is_not_sharded(trained):
    """Each process draws its own rows: an objective without rows makes no pass there, and the others would wait."""
    with pytest.raises(
        RecipeError, match=r"with objective 'mixture' the number of forward passes.*training\.parallel to ddp"
    ):
        trained("fsdp", objective={"name": "mixture"})
    with pytest.raises(EOFError):
        trained("ddp", objective={"name": "mixture"})
    with pytest.raises(EOFError):
        trained("fsdp", objective={"name": "masked_lm"})
