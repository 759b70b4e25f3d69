"""Every benchmark script runs in quick mode and prints its results."""

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
"""The other scripts need corpora and train models; `headstart bench --quick` runs all of them."""


@pytest.mark.parametrize("name", FAST)
def test_script_prints_results(name):
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


def test_page_keeps_results_of_other_scripts(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    line = {"name": "a", "ours": 3.0, "theirs": 2.0, "ratio": 1.5, "goal": 1.0, "unit": "x"}
    for name, value in (("one", line), ("two", line | {"name": "b", "ratio": 0.5})):
        text = f"import json\ndef main(): print(json.dumps({value!r}))\nmain()\n"
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    bench.run(page=page)
    edited = page.read_text(encoding="utf-8").replace("<!-- /limits -->", "b lacks bf16<!-- /limits -->")
    page.write_text(edited, encoding="utf-8")
    (tmp_path / "benchmarks" / "one.py").write_text(text.replace("0.5", "0.7").replace("'b'", "'a'"), encoding="utf-8")
    assert {result["name"]: result["ratio"] for result in bench.run(["one"], page=page)} == {"a": 0.7, "b": 0.5}
    written = page.read_text(encoding="utf-8")
    assert "<!-- limits -->b lacks bf16<!-- /limits -->" in written, "hand-written text is kept"
    assert "| a | 3 | 2 | x | 0.700 | 1 | no | `one` | 20" in written
    assert f"| {len(os.sched_getaffinity(0))} cores, " in written, "each result names its machine"


def test_failing_script_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks").mkdir()
    line = {"name": "a", "ours": 3.0, "theirs": 2.0, "ratio": 1.5, "goal": 1.0, "unit": "x"}
    # Lines that libraries print are ignored.
    script = "print({'train_loss': 1}, '{', '{}', sep='\\n')\n"
    script += f"import json\ndef main(): print(json.dumps({line!r}))\nmain()\n"
    texts = {"first": "def main(): 1 / 0\nmain()\n", "none": "def main(): pass\n", "last": script}
    for name, text in texts.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"first\.py failed; the other benchmarks ran"):
        bench.run(page=tmp_path / "page.md")
    assert "| a | 3 |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "none: skipped" in capsys.readouterr().out
