"""Number formats are chosen by what the machine supports."""

from __future__ import annotations

import torch

from headstart.training import precision


def test_auto_resolves_to_bf16_or_fp32_and_other_values_stay():
    cpu = torch.device("cpu")
    assert precision.resolve("fp32", cpu) == "fp32" and precision.resolve("bf16", cpu) == "bf16"
    assert precision.resolve("auto", cpu) == ("bf16" if precision.has_fast_bf16(cpu) else "fp32")


def test_autocast_sets_the_dtype():
    a, cpu = torch.ones(4, 4), torch.device("cpu")
    with precision.autocast("bf16", cpu):
        assert (a @ a).dtype == torch.bfloat16
    with precision.autocast("fp32", cpu):
        assert (a @ a).dtype == torch.float32
