"""The best size and vocabulary for a time budget, from a table of measured runs and timed speeds."""

from __future__ import annotations

import json

import pytest

from headstart import verbs
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.plan import best_size
from headstart.stages.plan import forecast as plan

SPEEDS = {"tiny": 1000.0, "mini": 250.0}


def row(size: str, vocab: int, tokens: int, loss: float, bytes_per_token: float = 4.0):
    return {"size": size, "vocab": vocab, "tokens": tokens, "loss": loss, "bytes_per_token": bytes_per_token}


@pytest.fixture
def table(tmp_path):
    rows = [
        row("tiny", 1000, 10_000, 6.0), row("tiny", 1000, 1_000_000, 5.6),
        row("mini", 1000, 10_000, 5.9), row("mini", 1000, 1_000_000, 4.0),
        row("mini", 500, 10_000, 5.0, 3.0), row("mini", 500, 1_000_000, 3.9, 3.0),
    ]  # fmt: skip
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"kind": "bert", "objective": "masked_lm", "rows": rows}), encoding="utf-8")
    return path


@pytest.fixture
def speeds(monkeypatch):
    timed = []

    def run(recipe):
        timed.append((recipe.backbone.size, recipe.tokenizer.vocab_size))
        return {"tokens_per_second": SPEEDS[recipe.backbone.size], "cores": 1.0}

    monkeypatch.setattr(plan, "run", run)
    return timed


def recipe(way, recipe_of, budget: str, **more):
    raw = recipe_of["pretrain"](way, backbone={"family": "encoder", "kind": "bert", "size": "tiny"}, **more)
    raw["training"]["budget"] = budget
    return verbs.load(raw)


def test_a_large_network_wins_with_enough_time(way, recipe_of, table, speeds):
    candidates = best_size.run(recipe(way, recipe_of, "1000 s"), table=table)
    assert [(c.size, c.vocab) for c in candidates] == [("mini", 1000), ("tiny", 1000), ("mini", 500)]
    assert sorted(speeds) == [("mini", 500), ("mini", 1000), ("tiny", 1000)]
    assert candidates[0].tokens == 250_000 and not candidates[0].extrapolated
    text = best_size.render(candidates)
    assert "best: backbone.size=mini tokenizer.vocab_size=1000. It reads 0.25 × the tokens of the next best" in text
    assert "extrapolated" not in text


def test_a_small_network_wins_with_little_time_and_extrapolations_are_marked(way, recipe_of, table, speeds):
    candidates = best_size.run(recipe(way, recipe_of, "12 s"), table=table)
    assert candidates[0].size == "tiny" and not candidates[0].extrapolated
    assert [c.extrapolated for c in candidates if c.size == "mini"] == [True, True]
    assert "(extrapolated)" in best_size.render(candidates)


def test_far_outside_the_measured_runs_there_is_no_recommendation(way, recipe_of, table, speeds):
    assert "best: backbone.size=mini" in best_size.render(best_size.run(recipe(way, recipe_of, "2000 s"), table=table))
    text = best_size.render(best_size.run(recipe(way, recipe_of, "10000 s"), table=table))
    assert "no recommendation: the longest measured run has 1.0 M tokens" in text and "best:" not in text


def test_a_busy_machine_is_reported(way, recipe_of, table, speeds, monkeypatch):
    monkeypatch.setattr(plan, "run", lambda recipe: {"tokens_per_second": 250.0, "cores": 0.5})
    candidates = best_size.run(recipe(way, recipe_of, "1000 s"), table=table)
    assert "Other processes used the CPU" in best_size.render(candidates)


def test_the_expected_loss_is_linear_in_log_tokens():
    points = [(100, 3.0), (1000, 2.0), (10_000, 1.5)]
    for tokens, loss in ((100, 3.0), (1000, 2.0), (10_000, 1.5), (1000 * 10**0.5, 1.75), (100_000, 1.0), (10, 4.0)):
        assert best_size.expected_loss(points, tokens) == pytest.approx(loss)
    assert best_size.expected_loss([(100, 3.0)], 7) == 3.0


def test_unsuitable_recipes_and_tables_are_refused(way, recipe_of, table, speeds):
    with pytest.raises(RecipeError, match=r"`training\.budget` is '6 steps'"):
        best_size.run(recipe(way, recipe_of, "6 steps"), table=table)
    with pytest.raises(RecipeError, match="trains bert with replaced_token"):
        best_size.run(recipe(way, recipe_of, "1 min", objective={"name": "replaced_token"}), table=table)
    with pytest.raises(RecipeError, match="not a recipe of `headstart pretrain`"):
        best_size.run(verbs.load(recipe_of["finetune"](way)), table=table)
    with pytest.raises(ArtifactError, match=r"scaling_table\.py"):
        best_size.run(recipe(way, recipe_of, "1 min"), table=table.with_name("none.json"))
