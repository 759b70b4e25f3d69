"""A recipe with short rows first and long rows later, from raw text to checkpoint."""

from __future__ import annotations

import os
import signal

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import RecipeError
from headstart.stages.pretrain.learner import RowBatches
from headstart.stages.pretrain.recipe import PretrainTraining
from headstart.training.callbacks import LoggingCallback
from headstart.training.jsonl import read_jsonl

PHASES = [{"length": 16, "share": 0.5}, {"length": 64, "share": 0.5}]


def recipe(way, recipe_of, output, **training):
    base = recipe_of["pretrain"](way, output=str(output))
    base["corpus"] = {**base["corpus"], "prepared": str(way / "shared")}
    base["training"] = {
        **base["training"], "budget": "12 steps", "seq_length": PHASES, "batch_tokens": 256,
        "logging_steps": 1, **training,
    }  # fmt: skip
    return base


def losses(folder):
    lines = read_jsonl(folder / "logs" / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(way, recipe_of, tmp_path_factory):
    return headstart.pretrain(recipe(way, recipe_of, tmp_path_factory.mktemp("uninterrupted") / "out"), quiet=True).path


def test_a_run_resumed_in_the_second_phase_equals_an_uninterrupted_one(
    uninterrupted, way, recipe_of, tmp_path, monkeypatch
):
    shapes = []
    batch, step_end = RowBatches.batch, LoggingCallback.on_step_end

    def seen(self, samples):
        result = batch(self, samples)
        shapes.append(tuple(result["input_ids"].shape))
        return result

    def stopped(self, loop, result):
        step_end(self, loop, result)
        if loop.progress.step in (3, 9):
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = recipe(way, recipe_of, tmp_path / "interrupted")
    monkeypatch.setattr(LoggingCallback, "on_step_end", stopped)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            headstart.pretrain(interrupted, quiet=True)
    monkeypatch.setattr(LoggingCallback, "on_step_end", step_end)
    monkeypatch.setattr(RowBatches, "batch", seen)
    folder = headstart.pretrain(interrupted, quiet=True)
    assert [width for _, width in shapes[:2]] == [16, 64], "a batch of each, to count FLOPs"
    assert shapes[2:] == [(4, 64)] * 3
    assert losses(folder) == losses(uninterrupted)
    assert (folder / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
    assert artifact.read_manifest(folder)["metrics"] == artifact.read_manifest(uninterrupted)["metrics"]


def test_tokens_epochs_and_flops_are_those_of_both_phases(uninterrupted, way, recipe_of):
    facts = artifact.read_manifest(uninterrupted)
    progress, tokens = facts["progress"], facts["data"]["train"]["tokens"]
    assert progress["tokens"] == 12 * 256 and facts["recipe"]["training"]["seq_length"] == PHASES
    # 14 of 16 and 62 of 64 tokens in a row are text, and [SEP]s between documents are few.
    assert progress["epochs"] == pytest.approx((6 * 16 * 14 + 6 * 4 * 62) / tokens, rel=0.05)
    planned = headstart.plan(recipe(way, recipe_of, "none"))
    assert planned["size"]["updates"] == 12 and planned["size"]["tokens to train on"] == 12 * 256
    assert planned["forecast"]["flops"] == pytest.approx(facts["cost"]["flops"], rel=0.01)
    short, long = (
        headstart.plan(recipe(way, recipe_of, "none", seq_length=length))["size"]["FLOPs per token"]
        for length in (16, 64)
    )
    assert short < planned["size"]["FLOPs per token"] < long
    assert headstart.plan(recipe(way, recipe_of, "none", budget="1 min"))["forecast"]["seconds"] == pytest.approx(60)


def test_held_out_rows_have_the_first_length(uninterrupted, way):
    """So the curve has no step where the length changes; `evaluate` uses the same rows."""
    scores = headstart.evaluate(uninterrupted, way / "other.txt")
    single = headstart.evaluate(way / "pretrained", way / "other.txt")
    assert scores["rows"] == pytest.approx(single["rows"] * 30 / 14, rel=0.05)


def test_the_model_must_read_the_longest_rows(way, recipe_of, tmp_path):
    wrong = recipe(way, recipe_of, tmp_path / "x", seq_length=[PHASES[0], {"length": 1024, "share": 0.5}])
    with pytest.raises(RecipeError, match=r"seq_length` is 1024, but `backbone\.max_length` is 512"):
        headstart.pretrain(wrong, quiet=True)


@pytest.mark.parametrize(("tokens", "rows"), [(256, (16, 4)), (300, (18, 4)), (40, (2, 1))])
def test_an_update_has_whole_rows(tokens, rows):
    settings = PretrainTraining(seq_length=PHASES, batch_tokens=tokens)
    assert tuple(settings.rows_of(phase.length) for phase in settings.phases) == rows
    assert settings.longest == 64
