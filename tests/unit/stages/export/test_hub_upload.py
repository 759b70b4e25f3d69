"""Uploads to a hub on 127.0.0.1: private repositories only, and every refusal is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.unit.checkpoint.local_hub import LocalHub

from headstart.core.errors import ArtifactError, RecipeError, ResourceError
from headstart.stages.export.formats.hub import Hub
from headstart.stages.export.settings import ExportSettings

FILES = {"README.md": b"# Topics\n", "model.safetensors": b"\x02\0\0\0\0\0\0\0{}"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with LocalHub().running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def upload(repository):
    """Upload a small folder; returns what is said of it."""
    folder = Path("my export")
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return Hub(ExportSettings(to="hub", upload=True, repo=repository)).after(folder)


@pytest.mark.parametrize(("given", "name"), [("org/new", "org/new"), ("short", "me/short")])
def test_a_private_repository_is_created_and_uploaded_to(hub, given, name):
    for _ in range(2):
        assert upload(given) == [f"uploaded 2 files, 0.0 MB, to the private repository {name}"]
        assert hub.repositories[name][-1] == FILES and name in hub.private


def test_nothing_is_uploaded_to_a_public_repository(hub):
    published = {"README.md": b"# What everyone reads"}
    hub.commit("me/public", published)
    with pytest.raises(ArtifactError) as refused:
        upload("me/public")
    message = str(refused.value)
    assert "me/public is a public repository, and nothing was uploaded to it" in message
    assert "the export in my export is complete" in message
    assert "To publish it, run `hf upload me/public 'my export' .`" in message
    assert hub.repositories["me/public"] == [published]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "Run `hf auth login`, or set HF_TOKEN"), (403, "Use a token that may write to org/name"),
        (503, "Check the connection (HF_HUB_OFFLINE, HF_ENDPOINT)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("exists", [False, True])
def test_a_refusal_is_a_sentence(hub, status, advice, exists):
    if exists:
        hub.commit("org/name", {})
        hub.private.add("org/name")
    hub.refusal = status
    with pytest.raises(ResourceError) as refused:
        upload("org/name")
    message = str(refused.value)
    assert f"the export could not be uploaded to org/name on {hub.address} (" in message and str(status) in message
    assert f"The export in my export is complete. {advice}" in message
    assert message.endswith("; then run the same command with --overwrite.") and "\n" not in message


def test_without_a_connection_there_is_a_sentence(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ResourceError, match=r"org/name on http://127\.0\.0\.1:9 .* Check the connection"):
        upload("org/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ResourceError, match=r"could not be uploaded .* Check the connection \(HF_HUB_OFFLINE"):
        upload("org/name")


def test_a_name_that_is_none_is_a_sentence(hub):
    with pytest.raises(ResourceError, match=r"'a/b/c'.*Correct --repo"):
        upload("a/b/c")


def test_an_upload_needs_a_repository():
    with pytest.raises(RecipeError, match="--repo is not"):
        Hub(ExportSettings(to="hub", upload=True))
