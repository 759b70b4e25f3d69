"""A corpus that is read while the model trains: the same weights from disk, from S3, and killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaigns.file_server import FaultyServer, behind
from tests.runs.conftest import QUICKSTART, TINY_PRETRAIN, Command

STREAM = "stream: {part_mb: 0.01, shuffle_parts: 3}"


@pytest.fixture(scope="module")
def files(passages: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The passages in six files, of which each has several parts."""
    folder = tmp_path_factory.mktemp("streamed")
    lines = passages.splitlines(keepends=True)
    for number in range(6):
        (folder / f"{number}.jsonl").write_text("".join(lines[number::6]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def store(files: Path, s3_port: int) -> Iterator[tuple[FaultyServer, Any]]:
    """The files in s3://streamed/text, behind a server of whose requests every eleventh fails."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
        client.create_bucket(Bucket="streamed")
        for path in files.iterdir():
            client.put_object(Bucket="streamed", Key=f"text/{path.name}", Body=path.read_bytes())
        faulty = FaultyServer(behind(s3_port))
        faulty.plan = lambda method, path: "500" if len(faulty.requests) % 11 == 0 else None
        with faulty.served() as address:
            patch.setenv("AWS_ENDPOINT_URL", address)
            yield faulty, client


def command(folder: str, output: Path, *more: str) -> tuple[str, ...]:
    return (
        "pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, "training.budget=36 steps",
        f"corpus={{files: '{folder}/*.jsonl', validation: 0.2, {STREAM}}}", f"output={output}", *more,
    )  # fmt: skip


def losses(folder: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if "loss" in key or key == "step"} for entry in entries]


def test_a_streamed_run_killed_and_resumed_on_an_empty_disk_equals_one_from_local_files(
    headstart: Command, start: Callable[..., subprocess.Popen[str]], files: Path, store: tuple[FaultyServer, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    local, remote, client = tmp_path / "local", tmp_path / "remote", store[1]
    headstart(*command(str(files), local))
    manifest = json.loads((local / "headstart.json").read_text())
    stream, progress = manifest["data"]["stream"], manifest["progress"]
    # The run ended before the corpus was read whole, and read more than one window.
    assert 6 < stream["parts_read"] < stream["parts"]
    assert 3 / stream["parts"] < progress["epochs"] < stream["parts_read"] / stream["parts"]
    assert f"{stream['parts_read']} of {stream['parts']} parts" in (local / "README.md").read_text()
    assert not (local / "stream").exists()

    arguments = command("s3://streamed/text", remote, "training.checkpoint_store=s3://streamed/run")
    process = start(*arguments)
    try:
        deadline = time.monotonic() + 600
        while not (steps := _complete(client)) or max(steps) < 20:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert max(steps) < 36
    shutil.rmtree(remote)
    headstart(*arguments)
    assert (remote / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    assert losses(remote) == losses(local) and losses(local)[0]["step"] == 1


def _complete(client: Any) -> list[int]:
    found = client.list_objects_v2(Bucket="streamed", Prefix="run/step-").get("Contents", [])
    parts = [entry["Key"].split("/") for entry in found]
    return [int(name[1].removeprefix("step-")) for name in parts if name[2:] == ["headstart.json"]]
