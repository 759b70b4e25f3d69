"""fp16: the scale of the loss falls when gradients overflow, rises again, and belongs to the checkpoint."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from headstart.core.errors import ResourceError
from headstart.training import precision
from headstart.training.loss_scale import LossScale

FP16 = {"precision": "fp16", "save_interval_minutes": 1e-9, "save_total_limit": 20}


def test_the_scale_halves_on_an_overflow_down_to_one_and_doubles_after_2000_steps():
    scale = LossScale(torch.device("cpu"), scale=4.0)
    for expected in (2.0, 1.0, 1.0):
        scale.update(torch.tensor(1.0))
        assert scale.state == (expected, 0)
    scale = LossScale(torch.device("cpu"), scale=4.0, steps=1998)
    scale.update(torch.tensor(0.0))
    assert scale.state == (4.0, 1999)
    scale.update(torch.tensor(0.0))
    assert scale.state == (8.0, 0)


def test_training_in_fp16_follows_that_in_fp32(toy, tmp_path):
    losses = {}
    for name in ("fp32", "fp16"):
        loop = scaled(toy, tmp_path / name, toy.Learner(dropout=0.0), 256.0, precision=name)
        losses[name] = [loss for loss, _ in loop.progress.window]
    assert len(losses["fp16"]) == 12 and losses["fp16"] != losses["fp32"]
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=5e-3)


TOO_LARGE = 2.0**24
"""A scale with which the first gradients overflow."""


def scaled(toy, folder, learner, scale, **given):
    """Train with another first scale."""
    loop = toy.loop(folder, learner, **{"precision": "fp16", **given})
    if loop.train_step.loss_scale is not None:
        loop.train_step.loss_scale = LossScale(torch.device("cpu"), scale)
    loop.run()
    return loop


def test_gradients_that_overflow_are_the_scales_fault_and_change_no_weights(toy, tmp_path):
    loop = scaled(toy, tmp_path, toy.Learner(dropout=0.0), TOO_LARGE)
    progress = loop.progress
    assert 0 < progress.skipped_steps < 12 and progress.bad_steps == 0
    assert progress.loss_scale == TOO_LARGE / 2**progress.skipped_steps
    assert not (tmp_path / "logs" / "quarantine.jsonl").exists(), "the rows are blamed for the scale"


def test_a_bad_row_is_not_the_scales_fault(toy, tmp_path):
    loop = scaled(toy, tmp_path, toy.Learner(dropout=0.0, poisoned=[1]), 256.0, stop_after_bad_steps=50)
    assert loop.progress.skipped_steps == 0 and loop.train_step.loss_scale.state[0] == 256
    assert (tmp_path / "logs" / "quarantine.jsonl").read_text().count('"loss": NaN') >= 1


def test_a_resumed_run_has_the_scale_and_the_bits_of_an_uninterrupted_one(toy, tmp_path):
    smooth = scaled(toy, tmp_path / "smooth", toy.Learner(), TOO_LARGE, **FP16)
    shutil.copytree(tmp_path / "smooth", tmp_path / "rough")
    for path in (tmp_path / "rough" / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > 7:
            shutil.rmtree(path)
    kept = json.loads((tmp_path / "rough" / "checkpoints" / "step-000000007" / "progress.json").read_text())
    assert kept["loss_scale"] < TOO_LARGE
    learner = toy.Learner()
    loop = toy.loop(tmp_path / "rough", learner, **FP16)
    loop.restore()
    assert loop.progress.step == 7 and loop.train_step.loss_scale.state[0] == kept["loss_scale"]
    loop.run()
    toy.assert_same(toy.weights(learner), toy.weights(smooth.learner))
    assert loop.progress.skipped_steps == smooth.progress.skipped_steps
    assert math.isclose(loop.progress.loss_scale, smooth.progress.loss_scale)


def test_an_operation_without_a_kernel_is_explained():
    error = RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nsecond line")
    explained = precision.missing_kernel(error, "fp16", torch.device("cpu"))
    assert "`training.precision` is fp16" in str(explained) and "to fp32, or to bf16" in str(explained)
    assert precision.missing_kernel(RuntimeError("shape mismatch"), "fp16", torch.device("cpu")) is None
    with pytest.raises(ResourceError, match=r"`training\.tf32` is true, but the device is cpu"):
        precision.set_tf32(True, torch.device("cpu"))
