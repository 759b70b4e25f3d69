"""Predictions for files as people have them, resumed runs, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headstart
from headstart.core.errors import ArtifactError, DataError, RecipeError, ResourceError
from headstart.stages.predict import compute, executors
from headstart.stages.predict import run as stage
from headstart.stages.predict.parts import Parts
from headstart.stages.runs.token_batches import _batches


def predict(model: Path, data: Path, to: Path, **settings: Any) -> dict[str, Any]:
    """Predict in this process, unless the test asks for more."""
    return headstart.predict(model, data, to, quiet=True, **{"processes": 1, **settings})


@pytest.fixture(scope="module")
def model(way) -> Path:
    return way / "tuned"


@pytest.fixture(scope="module")
def texts(labelled_rows) -> list[str]:
    return [text for text, _ in labelled_rows[:50]]


def written(path: Path, **header: str) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, **header))


def test_a_file_with_semicolons_in_windows_1252(model, tmp_path):
    data, out = tmp_path / "a.csv", tmp_path / "out.csv"
    data.write_bytes(
        "text;size\nthe café and the fiancée;1,5\n;2\nIn the beginning;3;4\nAnd God said;\n".encode("cp1252")
    )
    result = predict(model, data, out)
    rows = written(out)
    assert [row["size"] for row in rows] == ["1,5", "2", "3", ""] and rows[0]["text"] == "the café and the fiancée"
    assert [bool(row["prediction"]) for row in rows] == [True, False, False, True]
    assert result["problems"] == [[2, "the column 'text' is empty"], [3, "the row has 3 cells, but the header has 2"]]
    assert (result["rows"], result["predicted"], result["failed"]) == (4, 2, 2)
    assert "row 2: the column 'text' is empty" in stage.summary(result)


def test_lines_that_are_not_json_and_values_that_are_no_text(model, tmp_path):
    data, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    lines = ['{"text": "In the beginning", "n": 1}', "{torn", '{"text": 5, "n": "one"}', '{"n": 2}', "[1]",
             '{"text": "\\ud800", "n": 3}', '{"text": "=1+1", "n": null}']  # fmt: skip
    data.write_text("\n".join([*lines, ""]), encoding="utf-8")
    result = predict(model, data, out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, True, True, False]
    assert result["failed"] == 5 and rows[2]["text"] == 5 and rows[5]["text"] == "\ud800"
    assert "is not JSON" in rows[1]["error"] and "must be a text" in rows[2]["error"] and "Unicode" in rows[5]["error"]
    predict(model, data, tmp_path / "out.csv")
    assert written(tmp_path / "out.csv")[6]["text"] == "'=1+1", "a spreadsheet does not run it"
    predict(model, data, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("n").to_pylist() == ["1", None, "one", "2", None, "3", None]


def test_types_of_a_parquet_file_are_kept(model, texts, tmp_path):
    table = pa.table({"text": texts, "id": pa.array(range(50), pa.int32()), "when": pa.array([0] * 50, pa.date32())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    predict(model, tmp_path / "a.parquet", tmp_path / "out.parquet", chunk_rows=8)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).equals(table)
    predict(model, tmp_path / "a.parquet", tmp_path / "out.jsonl", only_predictions=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == found.column("prediction").to_pylist()
    assert "text" not in lines[0]


def test_a_json_array_and_an_empty_file(model, texts, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    assert predict(model, tmp_path / "a.json", tmp_path / "a.tsv")["predicted"] == 50
    (tmp_path / "b.csv").write_text("text\n", encoding="utf-8")
    for suffix in ("csv", "parquet", "jsonl"):
        target = tmp_path / f"empty.{suffix}"
        assert predict(model, tmp_path / "b.csv", target)["rows"] == 0 and target.exists()


@pytest.fixture
def data(texts, tmp_path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


class Stopped(Exception):
    pass


def stop_after(monkeypatch, chunks: int) -> None:
    """Let the run end as a killed one does, after some chunks."""
    save, count = Parts.save, iter(range(100))

    def saved(self, *arguments):
        if next(count) == chunks:
            raise Stopped
        return save(self, *arguments)

    monkeypatch.setattr(Parts, "save", saved)


def test_a_stopped_run_resumes_to_the_same_bytes(model, data, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    predict(model, data, whole, chunk_rows=8)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            predict(model, data, out, chunk_rows=8)
    parts = tmp_path / ".out.csv.parts"
    assert len(list(parts.glob("*.receipt"))) == 3 and not out.exists()
    computed: list[str] = []
    run_job = executors.run_job
    monkeypatch.setattr(executors, "run_job", lambda job: computed.append(job) or run_job(job))
    assert predict(model, data, out, chunk_rows=8)["rows"] == 50
    assert len(computed) == 4 and out.read_bytes() == whole.read_bytes() and not parts.exists()


@pytest.mark.parametrize("change", ["data", "settings", "model"])
def test_chunks_of_another_run_are_not_used(model, data, tmp_path, monkeypatch, change):
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            predict(model, data, out, chunk_rows=8)
    settings = {"chunk_rows": 8, "scores": change == "settings"}
    if change == "data":
        data.write_text(data.read_text(encoding="utf-8").replace("the", "a"), encoding="utf-8")
    if change == "model":
        identity = stage.artifact.identity
        monkeypatch.setattr(stage.artifact, "identity", lambda folder: identity(folder)[::-1])
    predict(model, data, out, **settings)
    predict(model, data, whole, **settings)
    assert out.read_bytes() == whole.read_bytes()


def test_a_run_killed_after_the_rename_is_finished(model, data, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "remove", lambda self: None)
        first = predict(model, data, out)
    assert (tmp_path / ".out.csv.parts").exists()
    before = out.stat().st_mtime_ns
    assert predict(model, data, out)["rows"] == first["rows"]
    assert out.stat().st_mtime_ns == before and sorted(os.listdir(tmp_path)) == ["out.csv", "rows.jsonl"]


def test_two_processes_write_the_same_bytes(model, data, tmp_path):
    for processes in (1, 2):
        predict(model, data, tmp_path / f"{processes}.csv", chunk_rows=8, processes=processes)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_a_worker_that_dies_is_named_and_the_run_resumes(model, data, tmp_path, monkeypatch):
    wait = executors.WorkerProcesses.wait

    def kill(self):
        next(iter(self._busy.values())).process.kill()
        return wait(self)

    with monkeypatch.context() as patch:
        patch.setattr(executors.WorkerProcesses, "wait", kill)
        with pytest.raises(ResourceError, match="SIGKILL"):
            predict(model, data, tmp_path / "out.csv", chunk_rows=8, processes=2)
    assert predict(model, data, tmp_path / "out.csv", chunk_rows=8)["predicted"] == 50


def test_what_cannot_be_done_is_refused(way, model, data, tmp_path):
    out = tmp_path / "out.csv"
    with pytest.raises(RecipeError, match=r"ends in '\.xlsx'"):
        predict(model, data, tmp_path / "out.xlsx")
    with pytest.raises(ArtifactError, match="Predictions need an output of `headstart finetune`"):
        predict(way / "pretrained", data, out)
    with pytest.raises(DataError, match="is also the input"):
        predict(model, data, data)
    (tmp_path / "no.csv").write_text("body\nx\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no column 'text'"):
        predict(model, tmp_path / "no.csv", out)
    (tmp_path / "taken.csv").write_text("text,prediction\nx,y\n", encoding="utf-8")
    with pytest.raises(DataError, match="has a column 'prediction'"):
        predict(model, tmp_path / "taken.csv", out)
    (tmp_path / "twice.csv").write_text("text,text\nx,y\n", encoding="utf-8")
    with pytest.raises(DataError, match="several columns 'text'"):
        predict(model, tmp_path / "twice.csv", out)
    (tmp_path / "void.csv").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="is empty"):
        predict(model, tmp_path / "void.csv", out)
    with pytest.raises(RecipeError, match="top_k"):
        predict(model, data, out, top_k=0)
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match="exists already"):
        predict(model, data, out)
    assert out.read_text(encoding="utf-8") == "mine" and not (tmp_path / ".out.csv.parts").exists()
    predict(model, data, out, overwrite=True)
    assert len(written(out)) == 50


def test_a_model_that_changes_is_refused(model, data, tmp_path):
    shutil.copytree(model, tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match="was modified"):
        predict(tmp_path / "m", data, tmp_path / "out.csv")
    answer = compute.run_job(json.dumps({"folder": str(model), "identity": "other"}))
    with pytest.raises(ArtifactError, match="changed while"):
        compute.columns_of(answer)


def test_batches_are_limited_by_tokens():
    lengths = [3, 50, 4, 40, 100, 1]
    order = sorted(range(6), key=lengths.__getitem__)
    assert list(_batches(order, lengths, [1] * 6, 12)) == [[5, 0, 2], [3], [1], [4]]
    assert list(_batches(order, lengths, [4] * 6, 32)) == [[5, 0], [2], [3], [1], [4]]
