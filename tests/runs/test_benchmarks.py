"""Every benchmark script runs and prints its lines, with as little work as possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.core.errors import DataError
from headstart.stages import bench

ROOT = Path(__file__).parents[2]
FAST = ("startup", "loss_memory")
"""The others read the corpora and train: `headstart bench --quick` runs them all."""


@pytest.mark.parametrize("name", FAST)
def test_a_script_ends_with_its_lines(name):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", "--quick", "--repetitions", "1"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert {"name", "ours", "theirs", "ratio", "goal", "unit"} <= line.keys()
        assert line["ours"] > 0 and line["theirs"] > 0


def test_the_page_keeps_what_was_not_run_anew(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    line = {"name": "a", "ours": 3.0, "theirs": 2.0, "ratio": 1.5, "goal": 1.0, "unit": "x"}
    for name, value in (("one", line), ("two", line | {"name": "b", "ratio": 0.5})):
        text = f"import json\ndef main(): print(json.dumps({value!r}))\nmain()\n"
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    bench.run(page=page)
    said = page.read_text(encoding="utf-8").replace("<!-- /limits -->", "b lacks bf16<!-- /limits -->")
    page.write_text(said, encoding="utf-8")
    (tmp_path / "benchmarks" / "one.py").write_text(text.replace("0.5", "0.7").replace("'b'", "'a'"), encoding="utf-8")
    assert {found["name"]: found["ratio"] for found in bench.run(["one"], page=page)} == {"a": 0.7, "b": 0.5}
    written = page.read_text(encoding="utf-8")
    assert "<!-- limits -->b lacks bf16<!-- /limits -->" in written, "what a person wrote stays"
    assert "| a | 3 | 2 | x | 0.700 | 1 | no | `one` | 20" in written
    assert f"| {len(os.sched_getaffinity(0))} cores, " in written, "a line is worth what its machine was"


def test_a_script_that_fails_costs_no_other_its_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks").mkdir()
    line = {"name": "a", "ours": 3.0, "theirs": 2.0, "ratio": 1.5, "goal": 1.0, "unit": "x"}
    told = f"import json\ndef main(): print(json.dumps({line!r}))\nmain()\n"
    # A library's own lines on the way are not ours.
    told = "print({'train_loss': 1}, '{', '{}', sep='\\n')\n" + told
    texts = {"first": "def main(): 1 / 0\nmain()\n", "none": "def main(): pass\n", "last": told}
    for name, text in texts.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"first\.py failed; the others are measured"):
        bench.run(page=tmp_path / "page.md")
    assert "| a | 3 |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "none: left out" in capsys.readouterr().out
