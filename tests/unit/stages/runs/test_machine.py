"""A run records its machines and what `auto` became there; it does not change its number format when it resumes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.runs.machine import record_machine, this_machine
from headstart.stages.runs.manifest import MACHINES, FinetuneManifest, PretrainManifest, read_machines
from headstart.training import precision
from headstart.training.interruption import Stopped
from headstart.training.settings import TrainingSettings

AUTO = TrainingSettings()


@pytest.fixture
def hardware(monkeypatch):
    """Sets whether this machine has bf16 in hardware."""

    def has(bf16: bool) -> None:
        monkeypatch.setattr(precision, "has_fast_bf16", lambda device: bf16)

    return has


@pytest.mark.parametrize(("name", "kind"), [("pretrained", PretrainManifest), ("tuned", FinetuneManifest)])
def test_the_manifest_names_machine_format_and_attention(way, name, kind):
    (machine,) = kind.read(way / name).machines
    assert machine.cpu and machine.cores >= 1 and machine.threads >= 1 and machine.memory_gb > 0
    assert machine.device == precision.default_device().type
    assert machine.precision == precision.resolve("auto", precision.default_device())
    assert machine.attention == "eager"


def test_a_manifest_from_before_has_no_machines(way):
    values = artifact.read_manifest(way / "pretrained")
    del values["machines"]
    assert PretrainManifest.from_dict(values, way).machines == []


def test_another_format_is_refused_once_something_was_computed(tmp_path, hardware):
    hardware(True)
    record_machine(tmp_path, AUTO)
    hardware(False)
    assert [machine.precision for machine in record_machine(tmp_path, AUTO)] == ["fp32"], "no work is lost"
    (tmp_path / "checkpoints").mkdir()
    hardware(True)
    with pytest.raises(
        ArtifactError, match=r"trained in fp32.*auto is bf16 on this machine.*Set training\.precision to fp32"
    ):
        record_machine(tmp_path, AUTO)
    assert len(record_machine(tmp_path, TrainingSettings(precision="fp32"))) == 1


def test_machines_are_listed_in_order_and_another_device_is_a_warning(tmp_path, caplog):
    (tmp_path / "cells").mkdir()
    first = this_machine(AUTO).model_copy(update={"device": "a GPU", "cpu": "another"})
    (tmp_path / MACHINES).write_text(json.dumps([first.model_dump()]))
    assert [machine.cpu for machine in record_machine(tmp_path, AUTO)] == ["another", this_machine(AUTO).cpu]
    assert len(record_machine(tmp_path, AUTO)) == 2, "the same machine is listed once"
    assert "was trained on a GPU and is resumed on cpu" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "7", '[{"cores": "many"}]'])
def test_a_damaged_record_is_no_error(tmp_path, content):
    (tmp_path / MACHINES).write_text(content)
    (tmp_path / "checkpoints").mkdir()
    assert read_machines(tmp_path) == [] and record_machine(tmp_path, AUTO) == [this_machine(AUTO)]


def stop_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch, recipe: dict[str, Any], run: Any) -> None:
    """Begin a run and stop it at its third step, as SIGTERM would."""
    from headstart.training.interruption import StopSignal

    calls = iter(range(1000))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(StopSignal, "requested", lambda self: next(calls) > 3)
        run(recipe, quiet=True)


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_run_resumes_in_its_number_format_or_not_at_all(way, recipe_of, tmp_path, monkeypatch, hardware, verb):
    recipe, run = recipe_of[verb](way, output=str(tmp_path / "out")), getattr(headstart, verb)
    recipe["training"] = {**recipe["training"], "budget": "6 steps"}
    recipe |= {"compare_with": []} if verb == "finetune" else {}
    hardware(False)
    stop_after_a_checkpoint(monkeypatch, recipe, run)
    hardware(True)
    with pytest.raises(ArtifactError, match=r"auto is bf16 on this machine.*Set training\.precision to fp32"):
        run(recipe, quiet=True)
    with pytest.raises(ArtifactError, match=r"another recipe, which differs in training\.precision"):
        run(recipe, "training.precision=bf16", quiet=True)
    folder = run(recipe, "training.precision=fp32", quiet=True).path
    hardware(False)
    whole = run(recipe, f"output={tmp_path / 'whole'}", quiet=True).path
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert {machine["precision"] for machine in artifact.read_manifest(folder)["machines"]} == {"fp32"}


def test_a_run_from_before_the_record_resumes(way, recipe_of, tmp_path, monkeypatch):
    recipe = recipe_of["pretrain"](way, output=str(tmp_path / "out"))
    stop_after_a_checkpoint(monkeypatch, recipe, headstart.pretrain)
    (tmp_path / "out" / MACHINES).unlink()
    folder = headstart.pretrain(recipe, quiet=True).path
    assert (folder / "model.safetensors").read_bytes() == (way / "pretrained" / "model.safetensors").read_bytes()
    assert len(PretrainManifest.read(folder).machines) == 1
