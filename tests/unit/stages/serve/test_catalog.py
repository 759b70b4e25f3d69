"""Tasks by name: loaded on demand, evicted, replaced while requests use them, never a path from a request."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.unit.stages.serve.conftest import BODIES, EXTRA, tune

pytest.importorskip("prometheus_client", reason=EXTRA)

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.serve import adapter_weights, answers
from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.telemetry import Telemetry

GB = 10**9


def copied(tasks: Path, folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(tasks / name, folder / name)
    return folder


def swap(folder: Path, other: Path) -> None:
    """Replace a folder as a finished run does: by a rename."""
    staging = folder.with_name(f".{folder.name}.new")
    shutil.copytree(other, staging)
    folder.rename(folder.with_name(f".{folder.name}.old"))
    staging.rename(folder)
    shutil.rmtree(folder.with_name(f".{folder.name}.old"))


@pytest.mark.parametrize("name", ["../head", "tasks/head", "/etc/passwd", "head\0", ".", "", "HEAD", "head/"])
def test_a_name_is_never_a_path(tasks, name):
    with pytest.raises(Refusal) as refused:
        Catalog([tasks], GB, Telemetry()).load(name)
    assert refused.value.status == 404 and "etc" not in refused.value.message


def test_the_least_recently_used_task_is_evicted(tasks, tmp_path, caplog):
    folder = copied(tasks, tmp_path, "head", "lora", "ia3")
    telemetry = Telemetry()
    everything = Catalog([folder], GB, Telemetry())
    sizes = {slot.name: slot.size for slot in everything.fill()}
    catalog = Catalog([folder], sizes["head"] + sizes["lora"], telemetry)
    for name in ("head", "lora", "head", "ia3"):
        catalog.load(name)
    assert {slot.name for slot in catalog.slots()} == {"head", "ia3"}
    assert telemetry.evictions._value.get() == 1 and "Raise --cache-mb" in caplog.text
    assert len({id(slot.body) for slot in catalog.slots()}) == 1, "the body stays"
    assert catalog.load("lora").name == "lora"


def test_a_replaced_task_leaves_accepted_rows_alone(tasks, tmp_path, checkpoint, labelled_rows, texts):
    folder = copied(tasks, tmp_path / "given", "lora")
    other = tune(tmp_path / "other" / "lora", checkpoint("bert"), BODIES["bert"]["lora"], labelled_rows[::-1], seed=3)
    catalog = Catalog([folder], GB, Telemetry())
    old = catalog.load("lora")
    accepted = answers.encode(old, texts[:4])
    before = old.body.run(accepted)
    swap(folder / "lora", other)
    catalog.refresh()
    new = catalog.load("lora")
    assert new is not old and new.body is old.body and new.hash == artifact.identity(other)
    both = old.body.run([*accepted, *answers.encode(new, texts[:4])])
    np.testing.assert_allclose(both[:4], before, atol=1e-4)
    assert np.abs(np.asarray(both[4:]) - np.asarray(before)).max() > 1e-2
    assert catalog.entries["lora"].hash == new.hash


def test_a_damaged_version_does_not_replace_a_good_one(tasks, tmp_path, caplog):
    folder = copied(tasks, tmp_path, "lora")
    catalog = Catalog([folder], GB, Telemetry())
    old = catalog.load("lora")
    swap(folder / "lora", tasks / "lora")
    weights = folder / "lora" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\1\0")
    catalog.refresh()
    assert catalog.load("lora") is old and "its hash differs" in caplog.text
    with pytest.raises(ArtifactError):
        catalog.opener.open("lora", folder / "lora")


def test_tasks_come_and_go(tasks, tmp_path):
    folder = copied(tasks, tmp_path, "lora")
    catalog = Catalog([folder], GB, Telemetry())
    copied(tasks, folder, "ia3")
    catalog.refresh()
    assert catalog.load("ia3").facts["adaptation"] == "ia3"
    shutil.rmtree(folder / "lora")
    catalog.refresh()
    with pytest.raises(Refusal):
        catalog.load("lora")


def test_a_body_is_released_after_its_last_task(tasks, tmp_path):
    folder = copied(tasks, tmp_path, "lora", "head", "modern-lora")
    catalog = Catalog([folder], GB, Telemetry())
    body = weakref.ref(catalog.load("lora").body)
    assert catalog.load("head").body is body()
    other = catalog.load("modern-lora").body
    shutil.rmtree(folder / "lora")
    catalog.refresh()
    assert body() is not None, "another task on it is in memory"
    catalog.cache_bytes = 0
    catalog.load("modern-lora")
    catalog._keep(catalog.load("modern-lora"))
    assert [slot.name for slot in catalog.slots()] == ["modern-lora"]
    catalog.refresh()
    assert body() is not None, "a task on it was evicted, but can be asked for"
    shutil.rmtree(folder / "head")
    catalog.refresh()
    assert body() is None and list(catalog.opener.bodies.values()) == [other]
    shutil.copytree(tasks / "head", folder / "head")
    catalog.refresh()
    assert catalog.load("head").name == "head"


def test_files_that_change_while_they_are_loaded_are_loaded_again(tasks, tmp_path, monkeypatch, caplog):
    folder = copied(tasks, tmp_path, "lora", "ia3")
    catalog = Catalog([folder], GB, Telemetry())
    opener, read = catalog.opener, adapter_weights.read
    swapped: list[Path] = []

    def reading(path: Path, prefix: str) -> object:
        found = read(path, prefix)
        if not swapped:
            swap(path, tasks / "lora-pair")
            swapped.append(path)
        return found

    monkeypatch.setattr(adapter_weights, "read", reading)
    slot = opener.open("lora", folder / "lora", catalog.entries["lora"].finetuned)
    assert slot.hash == artifact.identity(tasks / "lora-pair") and slot.facts["inputs"] == ["text", "other"]


def test_a_folder_beside_the_tasks_that_cannot_be_served_is_left_out(tasks, tmp_path, caplog):
    folder = copied(tasks, tmp_path, "head", "lora")
    with artifact.staged(folder / "head-onnx", "export") as staging:
        (staging.path / "model.onnx").write_bytes(b"graph")
    (folder / "lora" / "headstart.json").write_text("{", encoding="utf-8")
    catalog = Catalog([folder], GB, Telemetry())
    assert set(catalog.entries) == {"head"} and caplog.text.count("the task lora was not loaded") == 1
    catalog.refresh()
    assert caplog.text.count("the task lora") == 1 and "head-onnx" not in caplog.text
    shutil.copy(tasks / "lora" / "headstart.json", folder / "lora" / "headstart.json")
    catalog.refresh()
    assert set(catalog.entries) == {"head", "lora"}
    with pytest.raises(ArtifactError):
        Catalog([folder / "head-onnx"], GB, Telemetry())


def test_what_cannot_be_served_is_said_at_the_start(tasks, tmp_path, checkpoint):
    with pytest.raises(ArtifactError, match="no fine-tuned model"):
        Catalog([tmp_path], GB, Telemetry())
    with pytest.raises(ArtifactError, match="there is no folder"):
        Catalog([tmp_path / "missing"], GB, Telemetry())
    copied(tasks, tmp_path / "damaged", "lora")
    (tmp_path / "damaged" / "lora" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="its hash differs"):
        Catalog([tmp_path / "damaged"], GB, Telemetry()).fill()
    with pytest.raises(Refusal, match="cannot be loaded"):
        Catalog([tmp_path / "damaged"], GB, Telemetry()).load("lora")
    copied(tasks, tmp_path / "a", "lora")
    copied(tasks, tmp_path / "b", "lora")
    with pytest.raises(ArtifactError, match="two tasks have the name 'lora'"):
        Catalog([tmp_path / "a", tmp_path / "b"], GB, Telemetry())
