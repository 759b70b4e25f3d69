"""A checkpoint store (moto on 127.0.0.1) and a machine with older files of the same run: log and cost continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import headstart
from headstart.core import artifact
from headstart.corpus.read.store_folder import StoreFolder, download
from headstart.stages.runs.checkpoint_store import RemoteCheckpoints

boto3 = pytest.importorskip("boto3", reason="boto3 is missing; `pip install 'headstart[stores]'` brings it")


@pytest.fixture
def url(s3_port, monkeypatch, request):
    """The URL of an empty folder in S3."""
    endpoint = f"http://127.0.0.1:{s3_port}"
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="older")
    return f"s3://older/{request.node.name}"


def write_step(output: Path, step: int, seconds: float, machine: str) -> Path:
    """Write the files of a run that was on one machine from its first step to this one."""
    (output / "logs").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": number, "machine": machine}) + "\n" for number in range(1, step + 1)]
    (output / "logs" / "metrics.jsonl").write_text("".join(lines))
    (output / "cost.json").write_text(json.dumps({"seconds": seconds}))
    (output / "recipe.yaml").write_text(f"output: {machine}\n")
    path = output / "checkpoints" / f"step-{step:09d}"
    with artifact.staged(path, "checkpoint", run="fingerprint") as staging:
        (staging / "weights.safetensors").write_bytes(machine.encode())
    return path


def files_of(output: Path) -> tuple[list[str], float, str]:
    """Return the machines in the log, the seconds, and the owner of the recipe."""
    lines = [json.loads(line) for line in (output / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    cost = json.loads((output / "cost.json").read_text())
    return [line["machine"] for line in lines], cost["seconds"], (output / "recipe.yaml").read_text().split()[1]


@pytest.fixture
def machines(url, tmp_path):
    """The older machine, at step 4, and the store, with the checkpoints of another machine at steps 6 and 8."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    write_step(older, 4, 10.0, "older")
    for step in (6, 8):
        RemoteCheckpoints(StoreFolder(url), newer).upload_checkpoint(write_step(newer, step, 20.0, "newer"), keep=2)
    return older, RemoteCheckpoints(StoreFolder(url), older)


def test_the_log_and_the_cost_come_with_a_newer_checkpoint(machines):
    older, store = machines
    store.restore("fingerprint")
    assert files_of(older) == (["newer"] * 8, 20.0, "older")
    assert sorted(path.name for path in (older / "checkpoints").iterdir()) == ["step-000000004", "step-000000008"]
    assert not (older / ".restoring").exists()


def test_a_larger_cost_stays_because_it_was_paid(machines):
    older, store = machines
    (older / "cost.json").write_text('{"seconds": 35.5}')
    store.restore("fingerprint")
    assert files_of(older) == (["newer"] * 8, 35.5, "older")


def test_a_cost_that_cannot_be_read_is_replaced(machines):
    older, store = machines
    (older / "cost.json").write_text('{"sec')
    store.restore("fingerprint")
    assert files_of(older)[1] == 20.0


def test_a_later_local_checkpoint_keeps_its_log(machines):
    older, store = machines
    write_step(older, 9, 10.0, "older")
    store.restore("fingerprint")
    assert files_of(older) == (["older"] * 9, 10.0, "older")


def test_a_damaged_checkpoint_changes_nothing(machines, tmp_path, caplog):
    older, store = machines
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"x")
    store.folder.upload(damaged, "step-000000008/weights.safetensors")
    write_step(older, 7, 10.0, "older")
    store.restore("fingerprint")
    assert files_of(older) == (["older"] * 7, 10.0, "older") and "skipped a damaged checkpoint" in caplog.text
    # The one before it is later than that of this machine: the log may be longer, and is cut when the run resumes.
    shutil.rmtree(older / "checkpoints" / "step-000000007")
    store.restore("fingerprint")
    assert files_of(older) == (["newer"] * 8, 20.0, "older")
    assert (older / "checkpoints" / "step-000000006").is_dir()


def test_killed_before_the_checkpoint_appears_the_next_attempt_restores_both(machines, monkeypatch):
    older, store = machines
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted_after(older / "logs" / "metrics.jsonl", "newer"))
        store.restore("fingerprint")
    assert not (older / "checkpoints" / "step-000000008").exists()
    store.restore("fingerprint")
    assert files_of(older) == (["newer"] * 8, 20.0, "older") and (older / "checkpoints" / "step-000000008").is_dir()


def interrupted_after(path: Path, text: str):
    """Return `shutil.rmtree` that is interrupted once the file at `path` has a text."""
    remove = shutil.rmtree

    def interrupted(*arguments, **settings):
        if text in path.read_text():
            raise KeyboardInterrupt
        remove(*arguments, **settings)

    return interrupted


def test_a_run_that_was_continued_elsewhere_resumes_with_the_whole_log(
    url, tmp_path, interrupted_at, recipe_of, verses
):
    """On machine A until step 4, on B until step 8, and on A again: the log and the weights of one machine."""
    (tmp_path / "text.txt").write_text("\n\n".join(verse for verse in verses[:600] if verse), encoding="utf-8")
    recipe = recipe_of["pretrain"](tmp_path)
    recipe["training"] |= {"budget": "10 steps", "logging_steps": 1, "save_interval_minutes": 1e-6}

    def on(machine: str, **training):
        headstart.pretrain(recipe | {"output": str(tmp_path / machine)}, *map("=".join, training.items()), quiet=True)

    on("whole")
    stored = {"training.checkpoint_store": url}
    with interrupted_at(4):
        on("A", **stored)
    with interrupted_at(8):
        on("B", **stored)
    spent = stored_seconds(url, tmp_path)
    on("A", **stored)
    logs = {name: losses(tmp_path / name) for name in ("whole", "A")}
    assert logs["A"] == logs["whole"] and [step for step, _ in logs["A"]] == list(range(1, 11))
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in logs]
    assert weights[0] == weights[1]
    assert json.loads((tmp_path / "A" / "headstart.json").read_text())["cost"]["seconds"] > spent


def stored_seconds(url: str, folder: Path) -> float:
    """Return the seconds that the store counts at its newest checkpoint."""
    files = StoreFolder(url).files()
    newest = max(name for name in files if name.endswith("/run/cost.json"))
    download(files[newest], folder / "stored.json")
    return json.loads((folder / "stored.json").read_text())["seconds"]


def losses(output: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (output / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]
