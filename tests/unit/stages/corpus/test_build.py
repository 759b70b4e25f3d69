"""The build of a corpus: hard links where possible, and the seconds of all its processes."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.core import config
from headstart.corpus.parts import engine
from headstart.stages.corpus import build as corpus_build
from headstart.stages.corpus.recipe import CorpusRecipe


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
