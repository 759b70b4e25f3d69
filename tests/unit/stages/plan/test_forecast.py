"""The cost of a run before it starts."""

from __future__ import annotations

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import HeadstartError, RecipeError
from headstart.stages.plan import forecast as plan


def test_a_pretrain_recipe(way, recipe_of, tmp_path):
    found = headstart.plan(recipe_of["pretrain"](way, output=str(tmp_path / "none")))
    assert found["verb"] == "pretrain" and found["tokens_per_second"] > 0
    assert found["size"]["tokens to train on"] == 6 * 256 and found["size"]["updates"] == 6
    tag = found["forecast"]
    assert tag["tokens"] == 6 * 256 and tag["flops"] == pytest.approx(
        found["size"]["FLOPs per token"] * 6 * 256, rel=1e-3
    )
    assert tag["seconds"] == pytest.approx(6 * 256 / found["tokens_per_second"], rel=1e-6)
    assert not (tmp_path / "none").exists(), "a plan writes nothing"
    text = plan.render(found)
    assert "speed here" in text and "forecast" in text and "USD" in text


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [("1000 tokens", 1000), ("2 steps", 512), ("2 min", None), ("1e9 flops", None), ("1 epoch", None)],
)
def test_a_budget_in_any_unit_can_be_planned(way, recipe_of, budget, tokens):
    found = headstart.plan(recipe_of["pretrain"](way), f"training.budget={budget}")
    forecast = found["forecast"]
    if tokens:
        assert forecast["tokens"] == tokens
    elif budget == "2 min":
        assert forecast["seconds"] == pytest.approx(120, rel=1e-3)
    elif budget == "1e9 flops":
        assert forecast["flops"] == pytest.approx(1e9, rel=1e-2)
    else:
        assert forecast["tokens"] == pytest.approx((way / "text.txt").stat().st_size / 4.4, rel=0.01)


def test_a_plan_counts_the_tokens_that_a_run_reads(way, recipe_of, tmp_path):
    backbone = {"family": "encoder-decoder", "kind": "bart", "size": "tiny"}
    recipe = recipe_of["pretrain"](
        way, output=str(tmp_path / "run"), backbone=backbone, objective={"name": "denoising"}
    )
    recipe["training"] = {**recipe["training"], "budget": "8 steps", "batch_warmup_ratio": 0.5}
    planned = headstart.plan(recipe)
    progress = artifact.read_manifest(headstart.pretrain(recipe, quiet=True))["progress"]
    assert planned["size"]["tokens to train on"] == progress["tokens"] == (32 + 31) * (2 * 2 + 2 * 4 + 4 * 8)
    assert planned["size"]["updates"] == progress["steps"] == 8
    epoch = headstart.plan({**recipe, "training": {**recipe["training"], "budget": "1 epoch", "batch_warmup_ratio": 0}})
    assert epoch["forecast"]["tokens"] == pytest.approx((way / "text.txt").stat().st_size / 4.4 * 63 / 32, rel=0.01)


def test_a_finetune_recipe(way, recipe_of):
    recipe = recipe_of["finetune"](way, seeds=2, compare_with=["majority", "scratch"])
    found = headstart.plan(recipe)
    assert found["verb"] == "finetune" and found["size"]["training rows"] == 40
    assert found["size"]["methods × seeds"] == "2 × 2"
    length = found["size"]["tokens per row"]
    assert found["forecast"]["tokens"] == pytest.approx(2 * 2 * 3 * 16 * length, rel=0.01)
    one = headstart.plan(recipe_of["finetune"](way, seeds=1, compare_with=["majority"]))
    assert found["forecast"]["flops"] == pytest.approx(4 * one["forecast"]["flops"], rel=1e-3)
    assert "2 × 2" in plan.render(found)


def test_problems_are_found_before_training(way, recipe_of):
    with pytest.raises(RecipeError, match="an `objective`"):
        headstart.plan({"output": "x"})
    with pytest.raises(HeadstartError, match="no file"):
        headstart.plan(recipe_of["pretrain"](way, corpus={"files": ["nowhere.txt"]}))
    with pytest.raises(HeadstartError, match="no such folder"):
        headstart.plan(recipe_of["finetune"](way, model="nowhere"))
