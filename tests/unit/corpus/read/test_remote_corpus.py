"""A finished corpus in a store: what is copied, what is refused, and the commit of a corpus on the Hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.faults.campaigns.file_server import FaultyServer, Files
from tests.unit.checkpoint.local_hub import LocalHub

from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read import attempts, built, urls
from headstart.corpus.read.built import BuiltCorpus
from headstart.corpus.read.remote_corpus import open_corpus

TOKENS = np.arange(5000, dtype="<u2")
CONTENTS = {
    "tokenizer/tokenizer.json": b"{}",
    "shards/train/counts.json": b"{}",
    "shards/train/tokens-00000.bin": TOKENS.tobytes(),
    "documents/train/part-0.parquet": b"text",
    "DATASHEET.md": b"# Text",
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.001)


def corpus(**changes: Any) -> dict[str, bytes]:
    """The files of a corpus, with entries of the manifest changed."""
    described = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in CONTENTS.items()
    }
    manifest = {"format": 2, "kind": "corpus", "recipe": {"tokenizer": {}}, "files": described, **changes}
    return {**CONTENTS, "headstart.json": json.dumps(manifest).encode()}


def test_everything_but_text_and_tokens_is_copied_once(tmp_path: Path) -> None:
    server = FaultyServer(Files({f"c/{name}": content for name, content in corpus().items()}))
    with server.served() as address:
        opened = open_corpus(f"{address}/c")
        copied = [str(path.relative_to(opened.folder)) for path in opened.folder.rglob("*") if path.is_file()]
        assert sorted(copied) == ["headstart.json", "shards/train/counts.json", "tokenizer/tokenizer.json"]
        assert opened.folder.parent.parent == tmp_path / "cache"
        array = opened.opener("train", 1 << 20)("tokens-00000.bin", TOKENS.dtype, len(TOKENS))
        assert np.array_equal(array[:], TOKENS)
        server.requests.clear()
        assert open_corpus(f"{address}/c").folder == opened.folder
        assert {request.partition(" ")[2] for request in server.requests} == {"c/headstart.json"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": {}}, "is a corpus without token shards.*documents/"),
        ({"kind": "checkpoint"}, "is a checkpoint without token shards"),
        ({"files": None}, "is not the manifest of a corpus"),
        ({"files": {"../../x": {"bytes": 1, "sha256": "0"}}}, r"names '\.\./\.\./x', which is outside"),
        ({"files": {"tokenizer/tokenizer.json": {"bytes": 2, "sha256": "0"}}}, "its hash differs"),
    ],
)
def test_what_is_no_corpus_with_tokens_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with FaultyServer(Files(corpus(**changes))).served() as address, pytest.raises(ArtifactError, match=message):
        open_corpus(address)
    assert not list((tmp_path / "cache").glob("corpora/*/headstart.json"))


def test_an_incomplete_upload_is_refused() -> None:
    contents = corpus()
    contents["shards/train/tokens-00000.bin"] = TOKENS.tobytes()[:100]
    with (
        FaultyServer(Files(contents)).served() as address,
        pytest.raises(DataError, match=r"tokens-00000\.bin has 100 bytes; the manifest of its corpus records 10,000"),
    ):
        _ = open_corpus(address).objects


def test_urls_survive_as_paths() -> None:
    for url in ("s3://bucket/corpus?region=x", "s3://bucket/corpus?endpoint_override=http://127.0.0.1:9/"):
        section = BuiltCorpus.model_validate({"from": url})
        assert section.is_remote and section.model_dump(mode="json")["from"] == section.location == url
        assert BuiltCorpus.model_validate(section.model_dump()).location == url
    assert BuiltCorpus.model_validate({"from": Path("s3://bucket/corpus/")}).location == "s3://bucket/corpus"
    assert urls.restored(Path("/a/b")) == "/a/b" and not BuiltCorpus.model_validate({"from": "a/b"}).is_remote


def test_local_folders_have_one_spelling() -> None:
    """A run is addressed by a hash of its recipe, which must not depend on a slash."""
    for folder in ("a/b", "./a//b/", Path("a/b")):
        section = BuiltCorpus.model_validate({"from": folder})
        assert section.location == "a/b" and section.folder == section.local == Path("a/b")


def test_an_endpoint_in_the_options_is_where_a_corpus_is_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def opened(url: str) -> Any:
        asked.append(url)
        return SimpleNamespace(folder=Path("copy"), identity=lambda: "e")

    monkeypatch.setattr(built, "open_corpus", opened)
    monkeypatch.setattr(built, "_read_manifest", lambda folder: {"files": {}})
    url = "s3://bucket/books?endpoint_override=http://127.0.0.1:9"
    (described,) = BuiltCorpus.model_validate({"from": url}).sources()
    assert asked == [url] and described["name"] == "books?endpoint_override=http://127.0.0.1:9"


def test_a_corpus_on_the_hub_is_read_at_one_commit(tmp_path: Path) -> None:
    code = (
        "import json, numpy as np; from headstart.corpus.read.remote_corpus import open_corpus\n"
        "opened = open_corpus('hf://datasets/org/text/c')\n"
        "array = opened.opener('train', 1 << 20)('tokens-00000.bin', np.dtype('<u2'), 5000)\n"
        "print(json.dumps([opened.url, int(array[:].sum()), len(opened.identity())]))"
    )
    with LocalHub().running() as hub:
        commit = hub.commit("datasets/org/text", {f"c/{name}": content for name, content in corpus().items()})
        ((url, total, length),) = hub.call(code, (), tmp_path)
    assert url == f"hf://datasets/org/text@{commit}/c" and total == int(TOKENS.sum()) and length == 64
