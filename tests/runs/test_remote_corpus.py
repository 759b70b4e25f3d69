"""Token shards in S3 (moto on 127.0.0.1) and on a web server: the rows and losses of local shards, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaigns.file_server import TRANSIENT, FaultyServer, Files, behind

import headstart as package
from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read import attempts, blocks

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")
SECRET = "s3cr3t-0f-the-store"
LIMIT = 24 << 10


@pytest.fixture(scope="module")
def corpus(passages: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished corpus with token shards."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.jsonl").write_text(passages, "utf-8")
    recipe = {
        "output": str(folder / "tokens"), "title": "Passages", "validation": 0.15, "duplicates": None, "lines": None,
        "sources": [{"name": "kjv", "files": [str(folder / "text.jsonl")]}], "reading": {"part_mb": 0.1},
        "clean": {"language": None, "quality": None, "personal": None},
        "tokenizer": {"vocab_size": 700, "sample_mb": 0.3},
    }  # fmt: skip
    return package.build_corpus(recipe, quiet=True).path


@pytest.fixture(params=["s3", "http"])
def store(
    request: pytest.FixtureRequest, corpus: Path, s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FaultyServer, str]]:
    """The corpus behind a server that fails in 2 % of its requests and answers after 20 ms, and its URL."""
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADSTART_CACHE_GB", str(LIMIT / 1e9))
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(blocks, "SMALL_BLOCK_BYTES", 2048)
    contents = {str(path.relative_to(corpus)): path.read_bytes() for path in corpus.rglob("*") if path.is_file()}
    rng = random.Random(0)
    if request.param == "http":
        files = Files({f"corpora/kjv/{name}": content for name, content in contents.items()})
        faulty = FaultyServer(files, latency=0.02)
        faulty.replace = lambda path: files.contents.update({path: files.contents[path][::-1]})
    else:
        client = s3_client(monkeypatch, s3_port)
        for name, content in contents.items():
            client.put_object(Bucket="bucket", Key=f"corpora/kjv/{name}", Body=content)
        faulty = FaultyServer(behind(s3_port), latency=0.02)
        faulty.replace = lambda path: client.put_object(Bucket="bucket", Key=path, Body=contents[path[12:]][::-1])
    faulty.plan = lambda method, path: rng.choice(TRANSIENT) if rng.random() < 0.02 else None
    with faulty.served() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield faulty, f"{address}/corpora/kjv" if request.param == "http" else "s3://bucket/corpora/kjv"


def s3_client(monkeypatch: pytest.MonkeyPatch, port: int) -> Any:
    import boto3

    settings = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    client.create_bucket(Bucket="bucket")
    return client


def recipe_of(output: Path, corpus: str, **training: Any) -> dict[str, Any]:
    return {
        "output": str(output), "corpus": {"from": corpus},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"}, "objective": {"name": "masked_lm"},
        "training": {
            "budget": "12 steps", "seq_length": 32, "batch_tokens": 512, "eval_count": 2, "logging_steps": 1,
            **training,
        },
    }  # fmt: skip


def losses(folder: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if "loss" in key or key == "step"} for entry in entries]


def test_pretraining_from_remote_shards_equals_that_from_local_ones(
    corpus: Path, store: tuple[FaultyServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, url = store
    caches: list[blocks.BlockCache] = []
    made = blocks.BlockCache.__init__
    monkeypatch.setattr(
        blocks.BlockCache, "__init__", lambda self, *given: (made(self, *given), caches.append(self))[0]
    )
    local = package.pretrain(recipe_of(tmp_path / "local", str(corpus)), quiet=True).path
    remote = package.pretrain(recipe_of(tmp_path / "remote", url), quiet=True).path
    (cache,) = caches
    assert cache.block_bytes == 2048 and 0 < cache.disk_bytes() <= LIMIT
    assert sum("tokens-" in request for request in faulty.requests) > 50
    assert losses(remote) == losses(local) and len(losses(local)) >= 12
    assert (remote / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    manifests = [artifact.read_manifest(folder) for folder in (local, remote)]
    assert manifests[0]["parents"] == manifests[1]["parents"]
    assert manifests[1]["recipe"]["corpus"]["from"] == url
    # Neither text nor tokens were copied.
    copied = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert copied and not [path for path in copied if "tokens-" in path.name or path.suffix == ".parquet"]
    written = [path for path in [*remote.rglob("*"), *copied] if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    token_file = next(request for request in faulty.requests if request.endswith("train/tokens-00000.bin"))
    faulty.replace(token_file.partition(" ")[2].removeprefix("bucket/"))
    with pytest.raises(ArtifactError, match="the content of corpus has changed since"):
        package.pretrain(recipe_of(tmp_path / "remote", url), quiet=True)


def test_workers_read_remote_shards_too(corpus: Path, store: tuple[FaultyServer, str], tmp_path: Path) -> None:
    _, url = store
    local = package.pretrain(recipe_of(tmp_path / "local", str(corpus)), quiet=True).path
    remote = package.pretrain(recipe_of(tmp_path / "remote", url, dataloader_num_workers=1), quiet=True).path
    assert (remote / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["shards/train/tokens-00000.bin", "tokenizer/tokenizer.json"])
def test_nothing_is_trained_on_a_corpus_with_a_replaced_file(
    name: str, store: tuple[FaultyServer, str], tmp_path: Path
) -> None:
    faulty, url = store
    seen: list[str] = []

    def plan(method: str, path: str) -> str | None:
        if path.endswith(name):
            seen.append(path)
            # The tokens after they were listed and some of them were read; the tokenizer before it is copied.
            if len(seen) == (5 if "tokens-" in name else 1):
                faulty.replace(path.removeprefix("bucket/"))
        return None

    faulty.plan = plan
    expected = "was replaced after it was listed" if "tokens-" in name else "is not the file that the manifest"
    with pytest.raises((ArtifactError, DataError), match=f"{name}.*{expected}"):
        package.pretrain(recipe_of(tmp_path / "output", url), quiet=True)
    assert not (tmp_path / "output" / "model.safetensors").exists()


def test_a_corpus_that_does_not_exist_is_named(store: tuple[FaultyServer, str], tmp_path: Path) -> None:
    _, url = store
    with pytest.raises(DataError, match=r"headstart\.json"):
        package.pretrain(recipe_of(tmp_path / "output", f"{url}/nowhere"), quiet=True)
