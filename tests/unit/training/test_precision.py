"""Number formats are chosen by what the machine supports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from headstart.core.errors import ResourceError
from headstart.training import precision
from headstart.training.compilation import compile_layers
from headstart.training.replicas import may_leave_unused
from headstart.training.settings import DEVICE, TrainingSettings


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


def test_the_features_of_an_arm_processor_are_read(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", encoding="utf-8")
    monkeypatch.setattr(precision, "Path", lambda _: cpuinfo)
    precision.cpu_flags.cache_clear()
    try:
        assert precision.cpu_flags() == {"fp", "asimd", "bf16", "i8mm"}
        assert precision.has_fast_bf16(torch.device("cpu"))
    finally:
        precision.cpu_flags.cache_clear()


def test_a_device_that_torch_cannot_use_is_refused_with_those_that_it_can():
    assert precision.default_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match=r"`training\.device` is cuda:1.*Available here: cpu.*to auto"):
            precision.default_device("cuda:1")
    with pytest.raises(ValidationError, match="device"):
        TrainingSettings(device="gpu")


def test_the_environment_chooses_the_device_where_no_recipe_does(monkeypatch):
    monkeypatch.setenv(DEVICE, "cpu")
    assert precision.default_device() == torch.device("cpu")
    monkeypatch.setenv(DEVICE, "gpu")
    with pytest.raises(ResourceError, match=r"`--device`, HEADSTART_DEVICE\) is 'gpu'.*cuda:N"):
        precision.default_device()
    assert precision.default_device("cpu") == torch.device("cpu"), "the recipe decides"


def test_only_a_cpu_or_a_mixture_searches_for_unused_parameters():
    module = torch.nn.Linear(2, 2)
    assert may_leave_unused(module)
    assert not may_leave_unused(module.to("meta"))
    module.method = SimpleNamespace(same_passes=False)
    assert may_leave_unused(module)


def test_a_compiler_is_needed_for_the_cpu_only(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ResourceError, match="no C\\+\\+ compiler"):
        compile_layers(torch.nn.Linear(2, 2))
    assert compile_layers(torch.nn.Linear(2, 2), "cuda") == 0
