"""What a recipe pre-trains is checked before its text is prepared."""

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
    """Begins to train in one of two processes, and says so where text would be prepared."""
    (tmp_path / "text.txt").write_text("In the beginning.", encoding="utf-8")

    def prepare(*_):
        raise EOFError

    monkeypatch.setattr(World, "leader_first", lambda self: nullcontext())
    monkeypatch.setattr(pretrain, "prepare", prepare)

    def begin(parallel: str, **sections):
        raw = recipe_of["pretrain"](tmp_path, **sections)
        raw["training"] = {**raw["training"], "parallel": parallel}
        recipe = config.fill(PretrainRecipe, raw)
        pretrain._train(recipe, RunFolder(recipe.output, recipe, {}), World(0, 2), quiet=True)

    return begin


def test_a_mixture_is_not_sharded(trained):
    """Each process draws its own rows: a member without any makes no pass there, and the others would wait for it."""
    with pytest.raises(RecipeError, match=r"'mixture' makes as many forward passes.*training\.parallel to ddp"):
        trained("fsdp", objective={"name": "mixture"})
    with pytest.raises(EOFError):
        trained("ddp", objective={"name": "mixture"})
    with pytest.raises(EOFError):
        trained("fsdp", objective={"name": "masked_lm"})
