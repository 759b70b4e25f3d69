"""The end of a pre-training run reports what `headstart doctor` would: divergence, a loss above a unigram model's."""

from __future__ import annotations

import json
import shutil

import pytest

import headstart
from headstart.core import artifact
from headstart.stages.pretrain import run as stage


@pytest.fixture
def run(way, tmp_path):
    """Return a copy of a finished run, to be modified."""
    return shutil.copytree(way / "pretrained", tmp_path / "run")


def write_curve(run, losses, norm: float = 0.5, entropy: float = 5.0) -> None:
    """Give a run these held-out losses, and 40 lines of training in which the loss falls."""
    path = run / artifact.MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["metrics"] = {"validation": {"loss": losses[-1]}, "unigram_entropy": entropy}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    lines = [
        {"step": n, "loss": 9 - n / 10, "gradient_norm": norm, "learning_rate": 1e-4, "share": n / 40,
         "tokens_per_second": 1000.0, "tokens": n}
        for n in range(1, 41)
    ]  # fmt: skip
    lines += [{"step": 40 + n, "validation/loss": loss} for n, loss in enumerate(losses)]
    (run / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_a_run_that_learned_too_little_says_so_at_its_end(way):
    text = stage.summary(way / "pretrained")
    assert "✗ The held-out loss is" in text and "because 6 steps are too few" in text
    assert text == headstart.stages.runs.result.PretrainRun(way / "pretrained").summary()


@pytest.mark.parametrize("losses", [(4.0, 6.0), (4.0, float("nan")), (12.0, 12.0)])
def test_a_diverged_run_says_so_at_its_end(run, losses):
    write_curve(run, losses)
    assert "The run has diverged. Lower `training.learning_rate`" in stage.summary(run)


def test_a_run_above_its_best_loss_says_so_although_it_beats_unigrams(run):
    write_curve(run, (3.0, 2.0, 4.0))
    assert "! The held-out loss was best at step" in stage.summary(run)


def test_a_run_whose_gradients_were_clipped_says_so_at_its_end(run):
    write_curve(run, (4.0, 3.0), norm=7.0)
    assert "100% of the last gradients were clipped" in stage.summary(run)


def test_a_healthy_run_says_nothing_more(run):
    write_curve(run, (4.0, 3.0))
    text = stage.summary(run)
    assert "✗" not in text and "! " not in text and "✓" not in text


def test_a_run_without_its_log_is_summarized(run):
    shutil.rmtree(run / "logs")
    assert "held-out loss" in stage.summary(run)
