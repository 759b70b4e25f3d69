"""Checkpoints in S3 (moto on 127.0.0.1): killed, with its folder deleted, a run resumes to the same weights."""

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
from tests.runs.conftest import QUICKSTART, TINY_FINETUNE, TINY_PRETRAIN, Command, Finished

SECRET = "s3cr3t-0f-the-store"
BUCKET = "bucket"


@pytest.fixture(scope="module")
def store(s3_port: int) -> Iterator[tuple[FaultyServer, Any]]:
    """An empty bucket, behind a server of whose requests every eleventh fails, and a client that sees it directly."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
        client.create_bucket(Bucket=BUCKET)
        faulty = FaultyServer(behind(s3_port))
        faulty.plan = lambda method, path: "500" if len(faulty.requests) % 11 == 0 else None
        with faulty.served() as address:
            patch.setenv("AWS_ENDPOINT_URL", address)
            yield faulty, client


def keys(client: Any, prefix: str) -> list[str]:
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


def complete_steps(client: Any, prefix: str) -> list[str]:
    found = [key.removeprefix(f"{prefix}/").split("/") for key in keys(client, prefix)]
    return sorted(parts[0] for parts in found if parts[0].startswith("step-") and parts[1:] == ["headstart.json"])


@pytest.fixture(scope="module")
def arguments(work: Path) -> Callable[..., tuple[str, ...]]:
    def make(output: Path, *more: str) -> tuple[str, ...]:
        where = (f"output={output}", f"corpus.prepared={work / 'prepared'}")
        return (
            "pretrain",
            str(QUICKSTART / "pretrain.yaml"),
            *TINY_PRETRAIN,
            "training.budget=25 steps",
            *where,
            *more,
        )

    return make


@pytest.fixture(scope="module")
def whole(headstart: Command, arguments: Callable[..., tuple[str, ...]], tmp_path_factory: Any) -> Path:
    """A run that nothing interrupts and that has no store."""
    output = tmp_path_factory.mktemp("whole") / "run"
    headstart(*arguments(output))
    return output


@pytest.fixture(scope="module")
def killed(
    start: Callable[..., subprocess.Popen[str]], arguments: Callable[..., tuple[str, ...]],
    store: tuple[FaultyServer, Any], tmp_path_factory: Any,
) -> tuple[Path, str]:  # fmt: skip
    """The output and the checkpoint store of a run that was killed while it uploaded a checkpoint."""
    faulty, client = store
    output = tmp_path_factory.mktemp("killed") / "run"
    process = start(*arguments(output, f"training.checkpoint_store=s3://{BUCKET}/killed"))
    try:
        deadline = time.monotonic() + 600
        while len(complete_steps(client, "killed")) < 2 or not _is_uploading(faulty):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return output, f"s3://{BUCKET}/killed"


def _is_uploading(faulty: FaultyServer) -> bool:
    last = faulty.requests[-1]
    return last.startswith("PUT") and last.endswith(".safetensors")


def losses(folder: Path, cell: str = ".") -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (folder / "logs" / cell / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if "loss" in key or key == "step"} for entry in entries]


def test_a_killed_run_resumes_from_the_store_alone(
    headstart: Command, killed: tuple[Path, str], whole: Path, arguments: Callable[..., tuple[str, ...]],
    store: tuple[FaultyServer, Any],
) -> None:  # fmt: skip
    output, url = killed
    shutil.rmtree(output)
    before = complete_steps(store[1], "killed")
    steps = [int(name.removeprefix("step-")) for name in before]
    assert 0 < max(steps) < 25
    # The newest checkpoint is damaged in the store: the one before it counts.
    newest = next(key for key in keys(store[1], f"killed/{before[-1]}/") if key.endswith(".safetensors"))
    store[1].put_object(Bucket=BUCKET, Key=newest, Body=b"damaged")
    done = headstart(*arguments(output, f"training.checkpoint_store={url}"))
    assert "skipped a damaged checkpoint" in done.stderr + done.stdout
    assert (output / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    # With the log of the steps before the kill, which this machine did not make.
    assert losses(output) == losses(whole) and losses(whole)[0]["step"] == 1
    assert len(complete_steps(store[1], "killed")) == 2, "save_total_limit applies to the store"
    contents = [store[1].get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys(store[1], "killed/")]
    assert not [content for content in contents if SECRET.encode() in content]


def test_a_store_of_another_run_is_refused(
    headstart: Command, killed: tuple[Path, str], arguments: Callable[..., tuple[str, ...]], tmp_path: Path
) -> None:
    done = headstart(*arguments(tmp_path / "new", f"training.checkpoint_store={killed[1]}", "seed=7"), expect=2)
    assert f"{killed[1]} has checkpoints of another recipe or of other data" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def finetuning(pretrained: Finished) -> Callable[..., tuple[str, ...]]:
    """The command of a fine-tuning that adapts its checkpoint first and then trains two seeds."""

    def make(output: Path, *more: str) -> tuple[str, ...]:
        adapt = "adapt_first={texts: train, budget: 12 steps, seq_length: 32, batch_tokens: 256, checkpoints: 2}"
        return (
            "finetune", str(QUICKSTART / "finetune.yaml"), *TINY_FINETUNE, "compare_with=[majority]", adapt,
            f"model={pretrained.folder}", "training.budget=12 steps", "training.save_interval_minutes=0.001",
            f"output={output}", *more,
        )  # fmt: skip

    return make


def manifests(client: Any, prefix: str) -> set[str]:
    """The complete artifacts below a prefix."""
    names = [key.removeprefix(f"{prefix}/") for key in keys(client, prefix)]
    return {name.removesuffix("/headstart.json") for name in names if name.endswith("/headstart.json")}


def test_a_killed_finetuning_resumes_from_the_store_alone(
    headstart: Command, start: Callable[..., subprocess.Popen[str]], finetuning: Callable[..., tuple[str, ...]],
    store: tuple[FaultyServer, Any], tmp_path: Path,
) -> None:  # fmt: skip
    client, output, prefix = store[1], tmp_path / "run", "finetuning"
    command = finetuning(output, f"training.checkpoint_store=s3://{BUCKET}/{prefix}")

    def kill_once(is_reached: Callable[[set[str]], bool]) -> set[str]:
        """Start the run with an empty disk, and kill it at some state of the store."""
        shutil.rmtree(output, ignore_errors=True)
        process = start(*command)
        try:
            deadline = time.monotonic() + 600
            while not is_reached(present := manifests(client, prefix)):
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        return present

    # While the checkpoint is adapted, after a snapshot; then while the second seed is trained.
    kill_once(lambda present: any("pretraining/snapshots/step" in name for name in present))
    present = kill_once(lambda present: any("work/full-seed-1/step" in name for name in present))
    assert {"adapt_first/checkpoint", "cells/majority-seed-0", "cells/full-seed-0", "models/seed-0"} <= present
    assert not [name for name in present if "pretraining" in name or "work/full-seed-0" in name]
    first = client.get_object(Bucket=BUCKET, Key=f"{prefix}/cells/full-seed-0/result.json")["Body"].read()
    shutil.rmtree(output)
    headstart(*command)
    # The first seed was not trained again: its result has the same times to the digit.
    assert (output / "cells" / "full-seed-0" / "result.json").read_bytes() == first
    whole = tmp_path / "whole" / "run"
    headstart(*finetuning(whole))
    assert (output / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for seed in (0, 1):
        assert losses(output, f"full-seed-{seed}") == losses(whole, f"full-seed-{seed}") != []
    # With another recipe, the store is refused, and nothing is left in the empty folder.
    store_of_it = f"training.checkpoint_store=s3://{BUCKET}/{prefix}"
    done = headstart(*finetuning(tmp_path / "new", store_of_it, "training.learning_rate=1e-4"), expect=2)
    assert f"s3://{BUCKET}/{prefix} has checkpoints of another recipe or of other data" in done.stderr
    assert not (tmp_path / "new").exists()
    # All seeds are in the store: an empty folder is filled without training.
    steps = len(store[0].requests)
    shutil.rmtree(output)
    headstart(*command)
    assert (output / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not [request for request in store[0].requests[steps:] if "/work/" in request and "PUT" in request]
