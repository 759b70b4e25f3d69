"""Models and data sets from a hub on 127.0.0.1 give the weights of local files, also if the hub moves on."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.runs.conftest import QUICKSTART, TINY_FINETUNE, TINY_PRETRAIN, Finished
from tests.unit.checkpoint.local_hub import LocalHub

FINETUNE = ("finetune", str(QUICKSTART / "finetune.yaml"), *TINY_FINETUNE)


class Client:
    """The command line, with a hub on this machine and an empty cache."""

    def __init__(self, hub: LocalHub, address: str, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.environment = os.environ | {
            "HF_ENDPOINT": address, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            self.environment.pop(name, None)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headstart", *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headstart", *arguments],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with LocalHub().running() as hub:
        yield Client(hub, hub.address, tmp_path)


@pytest.mark.slow
def test_the_same_weights_from_a_folder_and_from_the_hub(
    pretrained: Finished, finetuned: Finished, client: Client, tmp_path: Path
):
    files = files_of(pretrained.folder)
    # The record of the pre-training belongs to its own run.
    files.pop("recipe.yaml")
    commit = client.hub.commit("org/model", files)
    output = tmp_path / "finetuned"
    command = (*FINETUNE, f"output={output}", "model=org/model")
    first = client.run(*command)
    assert (output / "model.safetensors").read_bytes() == (finetuned.folder / "model.safetensors").read_bytes()
    assert yaml.safe_load((output / "recipe.yaml").read_text())["model"] == f"org/model@{commit}"
    assert commit in (output / "headstart.json").read_text()
    client.hub.commit("org/model", {**files, "config.json": b"{}"})
    assert client.run(*command) == first, "the run is finished, whatever the branch is at now"


@pytest.mark.slow
def test_a_killed_fine_tuning_resumes_on_its_commit_after_the_branch_moved_on(
    pretrained: Finished, client: Client, tmp_path: Path
):
    files = files_of(pretrained.folder)
    files.pop("recipe.yaml")
    commit = client.hub.commit("org/model", files)
    small = ("seeds=1", "compare_with=[]", "data.train_rows=64", "training.budget=16 steps")
    short = (*FINETUNE, *small, "training.save_interval_minutes=0.001")
    client.run(*short, f"model={pretrained.folder}", "output=local")
    local, named = tmp_path / "local", tmp_path / "named"
    command = (*short, "model=org/model", "output=named")
    process = client.start(*command)
    try:
        deadline = time.monotonic() + 150
        # Not Path.rglob, which fails if a folder is removed meanwhile.
        while not glob.glob(f"{named}/**/step-*/headstart.json", recursive=True, include_hidden=True):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert not (named / "headstart.json").exists(), "the run was killed before it finished"
    # Another network under the same name: with it, the run would fail.
    client.hub.commit("org/model", {**files, "config.json": b"{}"})
    client.run(*command)
    assert (named / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    assert yaml.safe_load((named / "recipe.yaml").read_text())["model"] == f"org/model@{commit}"


@pytest.mark.slow
def test_pretraining_keeps_the_commits_of_its_checkpoint_and_its_teacher(
    pretrained: Finished, client: Client, tmp_path: Path
):
    files = files_of(pretrained.folder)
    files.pop("recipe.yaml")
    commit = client.hub.commit("org/model", files)
    recipe = ("pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, "training.budget=4 steps", "tokenizer={}")
    continued = "backbone={{family: checkpoint, path: {}}}"
    distilled = "objective={{name: distillation, teacher: {}}}"
    client.run(*recipe, continued.format(pretrained.folder), distilled.format(pretrained.folder), "output=local")
    command = (*recipe, continued.format("org/model"), distilled.format("org/model"), "output=named")
    first = client.run(*command)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("local", "named")]
    assert weights[0] == weights[1]
    saved = yaml.safe_load((tmp_path / "named" / "recipe.yaml").read_text())
    assert saved["backbone"]["path"] == saved["objective"]["teacher"] == f"org/model@{commit}"
    assert json.loads((tmp_path / "named" / "headstart.json").read_text())["recipe"]["backbone"] == saved["backbone"]
    client.hub.commit("org/model", {**files, "config.json": b"{}"})
    client.hub.requests.clear()
    assert client.run(*command) == first
    assert not client.hub.requests, "the commit is in the recipe, and its files are in the cache"


@pytest.mark.slow
def test_the_same_weights_from_files_and_from_a_data_set_on_the_hub(
    pretrained: Finished, finetuned: Finished, client: Client, tmp_path: Path
):
    pytest.importorskip("datasets", reason="pip install datasets")
    splits = ("train", "validation", "test")
    files = {f"{split}.csv": (QUICKSTART / "data" / f"order-{split}.csv").read_bytes() for split in splits}
    commit = client.hub.commit("datasets/org/verses", files)
    output = tmp_path / "finetuned"
    names = (f"data.{split}={split}" for split in splits)
    command = (*FINETUNE, f"output={output}", f"model={pretrained.folder}", "data.dataset=org/verses", *names)
    first = client.run(*command)
    assert (output / "model.safetensors").read_bytes() == (finetuned.folder / "model.safetensors").read_bytes()
    assert yaml.safe_load((output / "recipe.yaml").read_text())["data"]["dataset"] == f"org/verses@{commit}"
    manifest = json.loads((output / "headstart.json").read_text())
    assert manifest["recipe"]["data"]["dataset"] == f"org/verses@{commit}"
    assert f"org/verses@{commit} (split test)" in (output / "README.md").read_text()
    client.hub.commit("datasets/org/verses", {**files, "train.csv": b"text,label\n"})
    client.hub.requests.clear()
    assert client.run(*command) == first, "the run is finished, whatever the branch is at now"
    rows = ("--split", "test")
    scores = json.loads(client.run("evaluate", str(output), f"org/verses@{commit}", *rows))
    local = json.loads(client.run("evaluate", str(output), str(QUICKSTART / "data" / "order-test.csv")))
    assert {**scores, "data": ""} == {**local, "data": ""}
    client.run("predict", str(output), f"org/verses@{commit}", *rows, "--to", "predicted.csv")
    assert (tmp_path / "predicted.csv").read_text().count("\n") > scores["rows"]
    assert not client.hub.requests, "a pinned data set in the cache needs no request"
