"""The build of a corpus: hard links where possible, and the seconds of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.core import config
from headstart.corpus.datasheet.inspection import WORK
from headstart.corpus.parts import engine
from headstart.stages.corpus import build as corpus_build
from headstart.stages.corpus.recipe import CorpusRecipe, inputs_of


def test_files_are_copied_if_links_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("text")
    corpus_build.link(tmp_path / "a", tmp_path / "linked")
    assert os.path.samefile(tmp_path / "a", tmp_path / "linked")

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    corpus_build.link(tmp_path / "a", tmp_path / "copied")
    assert (tmp_path / "copied").read_text() == "text" and not os.path.samefile(tmp_path / "a", tmp_path / "copied")


def test_a_resumed_build_adds_to_the_seconds_spent_before(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    recipe = config.fill(
        CorpusRecipe,
        {"output": str(tmp_path / "out"), "sources": [{"name": "a", "files": [str(tmp_path / "a.txt")]}]},
    )
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(corpus_build.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(engine, "start", lambda _: None)
    monkeypatch.setattr(engine, "run_tasks", lambda function, tasks, settings: iter([{} for _ in tasks]))
    first = corpus_build.Build(recipe)
    first._once("lines", lambda: {"rows": 1})
    first._tasks("clean", "module:function", [{"number": 0}, {"number": 1}])
    resumed = corpus_build.Build(recipe)
    assert resumed._once("lines", lambda: pytest.fail("the step is finished")) == {"rows": 1}
    assert resumed.seconds == {"lines": 10.0, "clean": 20.0}
    resumed._tasks("clean", "module:function", [{"number": 2}])
    assert resumed.seconds == {"lines": 10.0, "clean": 30.0}


def test_a_build_waits_for_the_engine_of_a_killed_one(tmp_path):
    """`kill -9` ends the command, not at once its engine, which may be publishing; two at once lose files."""
    words = "In the beginning God created the heaven and the earth, and the earth was without form and void. "
    documents = [words * 10 + f"This is document {i}, and it ends here." for i in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    sources = [{"name": "a", "files": [str(tmp_path / "a.jsonl")]}]
    recipe = {"output": str(tmp_path / "out"), "sources": sources, "clean": {"quality": None}, "duplicates": None}
    filled = config.fill(CorpusRecipe, recipe)
    task = {"recipe": config.to_dict(filled), "variables": {}, "inputs": inputs_of(filled), "quiet": True}
    hold = "import sys, time; from pathlib import Path; from headstart.core.lock import FolderLock\n"
    hold += f"with FolderLock(Path({str(tmp_path / 'out' / WORK)!r})): print('held', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    engines = [[sys.executable, "-c", hold], [sys.executable, "-m", "headstart.stages.corpus.build"]]
    with subprocess.Popen(engines[0], **pipes) as other:
        assert other.stdout.readline() == "held\n"
        with subprocess.Popen(engines[1], **pipes, stderr=subprocess.PIPE) as engine_process:
            engine_process.stdin.write(json.dumps(task))
            engine_process.stdin.close()
            assert "waiting for process" in engine_process.stderr.readline()
            assert not (tmp_path / "out" / "headstart.json").exists()
            other.stdin.close()
            assert engine_process.wait(timeout=300) == 0
    assert (tmp_path / "out" / "headstart.json").is_file()


@pytest.mark.parametrize(
    ("total", "lines"), [(1, [1]), (3, [1, 2, 3]), (161, [17, 33, 49, 65, 81, 97, 113, 129, 145, 161])]
)
def test_progress_has_ten_lines_however_many_parts_there_are(total, lines):
    from headstart.stages.corpus.build import _is_milestone

    assert [done for done in range(1, total + 1) if _is_milestone(done, total)] == lines
