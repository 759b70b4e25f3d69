"""`headstart predict` by its command line: killed and resumed, on several processes, on Ray, in flat memory."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from tests.runs.conftest import QUICKSTART, Command, Finished

CHUNK = "--chunk-rows=16"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verses without labels, twice, with one row that has no text."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    with (QUICKSTART / "data" / "kind-train.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row, _ in zip(csv.DictReader(file), range(400), strict=False)]
    texts[100] = ""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("number", "text"), *enumerate(texts)])
    return path


@pytest.fixture(scope="module")
def whole(headstart: Command, finetuned: Finished, data: Path) -> Path:
    """The predictions of one process, undisturbed."""
    out = data.with_name("whole.csv")
    done = headstart("predict", str(finetuned.folder), str(data), "--to", str(out), "--processes=1", CHUNK)
    assert "400 rows, 399 with a prediction" in done.stdout and "row 101: the column 'text' is empty" in done.stdout
    return out


def test_rows_come_out_in_their_order(whole: Path, data: Path) -> None:
    rows = list(csv.DictReader(whole.open(encoding="utf-8", newline="")))
    assert [int(row["number"]) for row in rows] == list(range(400))
    assert [row["number"] for row in rows if row["error"]] == ["100"]
    assert all(0 < float(row["probability"]) <= 1 for row in rows if not row["error"])
    assert sorted(path.name for path in data.parent.iterdir()) == ["rows.csv", "whole.csv"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_resumes_to_the_same_bytes(
    start: Callable[..., subprocess.Popen[str]], headstart: Command, finetuned: Finished, data: Path, whole: Path,
    tmp_path: Path, processes: int,
) -> None:  # fmt: skip
    out = tmp_path / "out.csv"
    command = ("predict", str(finetuned.folder), str(data), "--to", str(out), CHUNK, f"--processes={processes}")
    parts = tmp_path / ".out.csv.parts"
    run = start(*command)
    while run.poll() is None and len(list(parts.glob("*.receipt"))) < 3:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    finished = len(list(parts.glob("*.receipt")))
    assert run.returncode == -signal.SIGKILL and 3 <= finished < 25 and not out.exists()
    again = headstart(*command)
    assert f"{finished} chunks are finished" in again.stderr
    assert out.read_bytes() == whole.read_bytes() and list(tmp_path.iterdir()) == [out]


def test_an_interrupted_run_says_how_to_resume(
    start: Callable[..., subprocess.Popen[str]], finetuned: Finished, data: Path, tmp_path: Path
) -> None:
    parts = tmp_path / ".out.csv.parts"
    run = start("predict", str(finetuned.folder), str(data), "--to", str(tmp_path / "out.csv"), "--chunk-rows=1")
    while run.poll() is None and len(list(parts.glob("*.receipt"))) < 3:
        time.sleep(0.005)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 75 and "run the same command again to resume" in errors


@pytest.mark.slow
def test_a_local_ray_cluster_writes_the_same_bytes(
    headstart: Command, finetuned: Finished, data: Path, whole: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "out.csv"
    headstart("predict", str(finetuned.folder), str(data), "--to", str(out), "--on=ray", "--processes=2", CHUNK)
    assert out.read_bytes() == whole.read_bytes()


MEASURE = """
import json, resource, sys
from pathlib import Path
import headstart
model, folder = sys.argv[1:]
peaks = []
for name in sys.argv[2].split(","):
    out = Path(name).with_suffix(".out.csv")
    headstart.predict(model, name, out, quiet=True, processes=1, only_predictions=True)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_rows(finetuned: Finished, tmp_path: Path) -> None:
    """60,000 rows of 2 kB need at most 60 MB more than 10,000; all of them in memory would need 100 MB more."""
    names = []
    for count in (10_000, 60_000):
        rows = pa.table({"text": [f"a {i % 97}" for i in range(count)], "other": ["x" * 2000] * count})
        names.append(str(tmp_path / f"{count}.csv"))
        pyarrow.csv.write_csv(rows, names[-1])
    command = [sys.executable, "-c", MEASURE, str(finetuned.folder), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    few, many = json.loads(done.stdout.splitlines()[-1])
    assert many - few < 60_000, f"{few:,} → {many:,} kB"
    print(f"peak memory: {few:,} kB with 10,000 rows, {many:,} kB with 60,000")
