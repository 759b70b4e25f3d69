"""Search returns the passages nearest to a question."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import headstart
from headstart.core.errors import ArtifactError
from headstart.stages.search.query import Searcher, render

for package in ("usearch", "sentence_transformers"):
    pytest.importorskip(package, reason="pip install 'headstart[search]'")


def test_a_passage_is_found_by_its_own_text(built, verses):
    questions = [verse for verse in verses if len(verse.split()) > 9][:5]
    for answer, verse in zip(headstart.search(built, *questions, count=3), questions, strict=True):
        assert answer["passages"][0]["text"] == verse and answer["passages"][0]["score"] == pytest.approx(1, abs=0.01)
        scores = [passage["score"] for passage in answer["passages"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        assert answer["milliseconds"] > 0


def test_the_position_of_a_passage_is_that_in_the_text(built, recipe, verses):
    (answer,) = headstart.search(built, verses[13], count=1)
    (passage,) = answer["passages"]
    document, _, line = passage["place"].partition("#")
    texts = Path(recipe["corpus"]["files"][0]).read_text(encoding="utf-8").split("\n\n")
    assert texts[int(document.rpartition(":")[2])].splitlines()[int(line)] == passage["text"]
    assert passage["place"] in render(answer)


def test_another_model_than_that_of_the_passages_is_refused(built, model, tmp_path):
    other = tmp_path / "index"
    shutil.copytree(built, other)
    before = (model / "config.json").read_text(encoding="utf-8")
    (model / "config.json").write_text(json.dumps({**json.loads(before), "extra": 1}), encoding="utf-8")
    try:
        with pytest.raises(ArtifactError, match="is not the model that embedded the passages"):
            Searcher(other)
    finally:
        (model / "config.json").write_text(before, encoding="utf-8")


def test_scores_of_int8_vectors_are_cosines(recipe, verses, tmp_path):
    folder = headstart.index({**recipe, "output": str(tmp_path / "i8"), "graph": {"dtype": "i8"}}, quiet=True)
    (answer,) = headstart.search(folder, next(verse for verse in verses if len(verse.split()) > 9), count=3)
    assert answer["passages"][0]["score"] == pytest.approx(1, abs=0.02)
    assert all(-1.01 <= passage["score"] <= 1.01 for passage in answer["passages"])
