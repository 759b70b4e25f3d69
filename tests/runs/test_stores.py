"""A corpus in S3 (moto on 127.0.0.1, with faults on the way) and on disk: the same shards, weights and documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.faults.campaigns.file_server import FaultyServer, behind
from tests.runs.conftest import QUICKSTART, TINY_PRETRAIN, Command

SECRET = "s3cr3t-0f-the-store"


@pytest.fixture(scope="module")
def files(verses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages as JSON lines, in files of which each takes several requests."""
    folder = tmp_path_factory.mktemp("files")
    lines = [verse for verse in verses if verse]
    for number in range(3):
        passages = ["\n".join(lines[i : i + 6]) for i in range(number, 1800, 18)]
        rows = "".join(json.dumps({"text": text}) + "\n" for text in passages)
        (folder / f"{number}.jsonl").write_text(rows, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def store(files: Path, s3_port: int) -> Iterator[FaultyServer]:
    """The files in s3://bucket/text; every seventh request fails."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
        client.create_bucket(Bucket="bucket")
        for path in files.iterdir():
            client.put_object(Bucket="bucket", Key=f"text/{path.name}", Body=path.read_bytes())
        faulty = FaultyServer(behind(s3_port))
        faulty.plan = lambda method, path: "500" if len(faulty.requests) % 7 == 0 else None
        faulty.replace = lambda path: client.put_object(Bucket="bucket", Key=path, Body=b'{"text": "other"}\n' * 500)
        with faulty.served() as address:
            patch.setenv("AWS_ENDPOINT_URL", address)
            yield faulty


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern)) if path.is_file()}


def test_pretraining_from_s3_equals_that_from_local_files(
    headstart: Command, files: Path, store: FaultyServer, tmp_path: Path
) -> None:
    for name, place in (("local", str(files)), ("remote", "s3://bucket/text")):
        headstart(
            "pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, "training.budget=12 steps",
            f"corpus={{files: ['{place}/*.jsonl'], validation: 0.1}}", f"output={tmp_path / name}",
        )  # fmt: skip
    local, remote = tmp_path / "local", tmp_path / "remote"
    assert store.requests
    for split in ("train", "validation"):
        shards = contents(local / "prepared", f"{split}-*/*")
        shards.pop("headstart.json")
        assert shards and {name: contents(remote / "prepared", f"{split}-*/*")[name] for name in shards} == shards
    assert (remote / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    sources = json.loads((remote / "headstart.json").read_text())["data"]["sources"]
    assert [(file["name"], file["bytes"]) for file in sources] == [
        (path.name, path.stat().st_size) for path in sorted(files.iterdir())
    ]
    assert all(len(file["etag"]) == 32 for file in sources)
    written = [path for path in remote.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_corpus_built_from_s3_equals_that_from_local_files(
    headstart: Command, files: Path, store: FaultyServer, tmp_path: Path
) -> None:
    pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")
    for name, place in (("local", str(files)), ("remote", "s3://bucket/text")):
        recipe = {
            "output": str(tmp_path / name), "sources": [{"name": "s", "files": [place]}], "reading": {"part_mb": 0.05},
            "clean": {"language": None, "quality": None}, "duplicates": None, "validation": 0.1,
            "engine": {"workers": 2},
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        headstart("corpus", "build", str(tmp_path / f"{name}.yaml"))
    for pattern in ("documents/train/*", "documents/validation/*", "rejects.parquet"):
        local = contents(tmp_path / "local", pattern)
        assert local and contents(tmp_path / "remote", pattern) == local
    manifest = (tmp_path / "remote" / "headstart.json").read_text()
    assert '"etag"' in manifest and SECRET not in manifest


def test_nothing_is_trained_on_an_object_that_was_replaced(
    headstart: Command, store: FaultyServer, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    arguments = (
        "pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, f"output={output}",
        "corpus={files: ['s3://bucket/text/*.jsonl'], validation: 0.1}",
    )  # fmt: skip
    store.requests.clear()
    replaced = []

    def plan(method: str, path: str) -> str | None:
        if path.endswith("/1.jsonl") and not replaced:
            replaced.append(path)
            store.replace("text/1.jsonl")
        return None

    before, store.plan = store.plan, plan
    try:
        done = headstart(*arguments, expect=2)
    finally:
        store.plan = before
    assert "s3://bucket/text/1.jsonl was replaced after it was listed" in done.stderr
    assert not list(output.glob("checkpoints/*")) and not list(output.glob("prepared/train-*/headstart.json"))
