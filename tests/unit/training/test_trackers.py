"""metrics.jsonl and the trackers: what a run logs is read back from disk, and a resume continues it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import sys
from pathlib import Path

import pytest

from headstart.core.errors import ResourceError
from headstart.training.jsonl import drop_after, read_jsonl
from headstart.training.trackers import reporting_callbacks
from headstart.training.trackers.metrics_file import MetricsFileCallback

LOSS, SCORE = "loss", "validation/score"
Points = dict[str, list[tuple[int, float]]]


def metrics(folder: Path) -> Points:
    """Return the steps and values of two metrics in metrics.jsonl, which every run writes."""
    lines = read_jsonl(folder / "logs" / "metrics.jsonl")
    return {name: [(line["step"], line[name]) for line in lines if name in line] for name in (LOSS, SCORE)}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "loss": 1 / step} for step in range(1, 6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_torn_last_line_is_left_out(file):
    file.write_text(file.read_text()[:-5])
    assert [line["step"] for line in read_jsonl(file)] == [1, 2, 3, 4]
    assert read_jsonl(file.with_name("none.jsonl")) == []


def test_lines_after_a_step_are_dropped(file):
    drop_after(file, 3)
    assert [line["step"] for line in read_jsonl(file)] == [1, 2, 3]
    drop_after(file, 0)
    assert file.read_text() == "" and [path.name for path in file.parent.iterdir()] == ["metrics.jsonl"]


def test_each_log_entry_is_a_line_and_on_disk_at_once(toy, tmp_path):
    counts = []
    count = toy.At(3, lambda: counts.append(len(read_jsonl(tmp_path / "logs" / "metrics.jsonl"))))
    toy.loop(tmp_path, toy.Learner(), MetricsFileCallback(), count, budget="3 steps", eval_count=3).run()
    lines = read_jsonl(tmp_path / "logs" / "metrics.jsonl")
    assert [(line["step"], "loss" in line) for line in lines] == [
        (n, first) for n in (1, 2, 3) for first in (True, False)
    ]
    assert counts == [5]


def test_a_new_run_starts_a_new_file(toy, tmp_path):
    for _ in range(2):
        toy.loop(tmp_path, toy.Learner(), MetricsFileCallback(), budget="2 steps", eval_count=1).run()
        assert [line["step"] for line in read_jsonl(tmp_path / "logs" / "metrics.jsonl")] == [1, 2, 2]


def test_an_empty_list_reports_to_metrics_jsonl_alone(toy, tmp_path):
    toy.loop(tmp_path, toy.Learner(), *reporting_callbacks("toy", [], quiet=True)).run()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_reported_with_its_pip_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ResourceError, match=rf"`training\.report_to` lists {name}.*`pip install {name}`"):
        reporting_callbacks("toy", [name])


def test_report_to_is_a_list_a_name_or_none(toy):
    assert toy.settings().report_to == ["tensorboard"]
    assert toy.settings(report_to="wandb").report_to == ["wandb"]
    assert toy.settings(report_to="none").report_to == toy.settings(report_to=[]).report_to == []
    with pytest.raises(ValueError, match="'tensorboard', 'wandb', 'mlflow' or 'trackio'"):
        toy.settings(report_to=["comet"])


def read_tensorboard(folder: Path, tracked: Path) -> Points:
    """Read all event files as TensorBoard does, which hides the steps that a resumed run writes again."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    points: dict[str, dict[int, float]] = {LOSS: {}, SCORE: {}}
    for path in sorted((folder / "logs").glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in LegacyEventFileLoader(str(path)).Load():
            if event.HasField("session_log"):
                kept = {name: {s: v for s, v in values.items() if s < event.step} for name, values in points.items()}
                assert kept == points, "nothing was logged after the checkpoint"
            for value in event.summary.value:
                if value.tag in points:
                    points[value.tag][event.step] = value.simple_value
    return {name: sorted(values.items()) for name, values in points.items()}


def test_event_files_name_neither_the_machine_nor_the_process(toy, tmp_path, monkeypatch):
    """`SummaryWriter` would put both into the name of the file."""
    monkeypatch.setattr("socket.gethostname", lambda: "my-machine")
    monkeypatch.setattr("os.getpid", lambda: 987654)
    for _ in range(2):
        callbacks = reporting_callbacks("toy", ["tensorboard"], quiet=True)
        toy.loop(tmp_path, toy.Learner(), *callbacks, budget="2 steps").run()
    files = list((tmp_path / "logs").glob("events.out.tfevents.*"))
    assert len(files) == 2, "a run that starts again does not append to the file of another"
    for path in files:
        assert "my-machine" not in path.name and "987654" not in path.name
        content = path.read_bytes()
        assert b"my-machine" not in content and b"987654" not in content and str(tmp_path).encode() not in content


def read_wandb(folder: Path, tracked: Path) -> Points:
    """Read the history records of all offline runs, which must be one run, merged as `wandb sync` does."""
    from wandb.proto.wandb_internal_pb2 import Record

    end_wandb()
    points: dict[str, dict[int, float]] = {LOSS: {}, SCORE: {}}
    paths = sorted(tracked.rglob("*.wandb"))
    assert len({path.name for path in paths}) == 1, "a resumed run has the same id"
    for path in paths:
        for content in log_records(path.read_bytes()):
            history = Record.FromString(content).history
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
            for name in points.keys() & values.keys():
                points[name].setdefault(values["_step"], values[name])
    return {name: sorted(found.items()) for name, found in points.items()}


def log_records(content: bytes):
    """Yield the records of a file in LevelDB's log format, after a header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield record
            record = b""


def read_mlflow(folder: Path, tracked: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("headstart").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["learning_rate"] == "0.02"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in (LOSS, SCORE)}
    return {name: sorted({(m.step, m.value) for m in values}) for name, values in history.items()}


def read_trackio(folder: Path, tracked: Path) -> Points:
    with sqlite3.connect(tracked / "headstart.db") as database:
        rows = [(step, json.loads(values)) for step, values in database.execute("select step, metrics from metrics")]
        names = {name for (name,) in database.execute("select run_name from metrics")}
    assert names == {str(folder)}
    return {name: sorted({(step, values[name]) for step, values in rows if name in values}) for name in (LOSS, SCORE)}


READERS = {
    "tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow, "trackio": read_trackio,
}  # fmt: skip


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """Return the folder into which all trackers write, without a network."""
    folder = tmp_path / "tracked"
    folder.mkdir()
    for name, value in {
        "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "TRACKIO_DIR": str(folder), "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    # Trackio reads its folder when it is imported.
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    yield folder
    end_wandb()


def end_wandb() -> None:
    """End wandb's service, so that its files are complete and it reads its environment variables again."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_each_tracker_gets_every_value_also_after_a_resume(toy, tmp_path, tracked, monkeypatch, name):
    pytest.importorskip(name, reason=f"`pip install {name}` to run this")
    folder = tmp_path / "run"

    def run(attempt, *more):
        # wandb names a folder by the second in which a run starts, so each attempt has a parent folder of its own.
        (tracked / attempt).mkdir()
        monkeypatch.setenv("WANDB_DIR", str(tracked / attempt))
        end_wandb()
        loop = toy.loop(folder, toy.Learner(), *reporting_callbacks("toy", [name], quiet=True), *more, budget="5 steps")
        loop.restore()
        return loop.run()

    with pytest.raises(KeyboardInterrupt):
        run("first", toy.At(3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert run("second").resumed_from == 3
    expected = metrics(folder)
    assert [step for step, _ in expected[LOSS]] == [1, 2, 3, 4, 5] and len(expected[SCORE]) == 3
    points = READERS[name](folder, tracked)
    for metric, values in expected.items():
        assert points[metric] == [(step, pytest.approx(value, rel=1e-6)) for step, value in values]


@pytest.mark.slow
def test_a_run_can_report_to_several_trackers(toy, tmp_path, tracked):
    names = ["tensorboard", "wandb", "trackio"]
    for name in names[1:]:
        pytest.importorskip(name, reason=f"`pip install {name}` to run this")
    folder = tmp_path / "run"
    toy.loop(folder, toy.Learner(), *reporting_callbacks("toy", names, quiet=True), budget="2 steps").run()
    for name in names:
        assert [step for step, _ in READERS[name](folder, tracked)[LOSS]] == [1, 2]
