"""An index is built, goes on after a stop, and finds what was put into it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError, ResourceError
from headstart.stages.search import index as stage
from headstart.stages.search.query import Searcher, render

for package in ("usearch", "sentence_transformers"):
    pytest.importorskip(package, reason="`pip install 'headstart[search]'` brings it")


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(checkpoint("bert"), folder)
    return folder


@pytest.fixture(scope="module")
def recipe(verses, model, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("index")
    lines = [verse for verse in verses if verse][:120]
    documents = ["\n".join([*lines[start : start + 12], "Too short."]) for start in range(0, 120, 12)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    corpus = {"files": [str(folder / "text.txt")]}
    return {"output": str(folder / "index"), "model": str(model), "corpus": corpus, "passages": {"min_words": 4}}


@pytest.fixture(scope="module")
def built(recipe) -> Path:
    return headstart.index(recipe, quiet=True)


def test_a_passage_is_found_by_its_own_words(built, verses):
    wanted = [verse for verse in verses if len(verse.split()) > 9][:5]
    for answer, verse in zip(headstart.search(built, *wanted, count=3), wanted, strict=True):
        assert answer["passages"][0]["text"] == verse and answer["passages"][0]["score"] == pytest.approx(1, abs=0.01)
        scores = [passage["score"] for passage in answer["passages"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        assert answer["milliseconds"] > 0


def test_places_lead_back_to_the_text(built, recipe, verses):
    (answer,) = headstart.search(built, verses[13], count=1)
    (passage,) = answer["passages"]
    document, _, line = passage["place"].partition("#")
    texts = Path(recipe["corpus"]["files"][0]).read_text(encoding="utf-8").split("\n\n")
    assert texts[int(document.rpartition(":")[2])].splitlines()[int(line)] == passage["text"]
    assert passage["place"] in render(answer)


def test_the_folder_says_what_it_holds(built):
    facts = artifact.verify(built, "search index")["index"]
    assert facts["documents"] == 10 and 100 < facts["passages"] <= 120
    assert (
        facts["cost"]["tokens"] > 1000
        and facts["cost"]["flops"] > 1e6
        and "passages of 10 documents" in stage.summary(built)
    )
    assert not (built / "work").exists()


def test_a_stopped_run_goes_on_with_its_vectors(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "_TOGETHER", 32)
    known = {**recipe, "output": str(tmp_path / "index")}
    embed, calls = stage.Embedder.vectors, []

    def stumble(self, texts, batch_tokens=2048):
        if len(texts) > 1:  # one alone is for counting what a token costs
            calls.append(len(texts))
        if len(calls) == 3 and len(texts) > 1:
            raise KeyboardInterrupt
        return embed(self, texts, batch_tokens)

    monkeypatch.setattr(stage.Embedder, "vectors", stumble)
    with pytest.raises(KeyboardInterrupt):
        headstart.index(known, quiet=True)
    assert not artifact.is_complete(tmp_path / "index")
    headstart.index(known, quiet=True)
    whole = artifact.verify(tmp_path / "index")["index"]["passages"]
    assert sum(calls) - 32 == whole, "the third chunk alone was tried twice"


def test_the_first_passages_alone(recipe, tmp_path):
    folder = headstart.index({**recipe, "output": str(tmp_path), "passages": {"limit": 5}}, quiet=True)
    assert artifact.read_manifest(folder)["index"]["passages"] == 5


def test_questions_need_the_model_that_embedded_the_passages(built, model, tmp_path):
    other = tmp_path / "index"
    shutil.copytree(built, other)
    before = (model / "config.json").read_text(encoding="utf-8")
    (model / "config.json").write_text(json.dumps({**json.loads(before), "extra": 1}), encoding="utf-8")
    try:
        with pytest.raises(ArtifactError, match="is not the model that embedded the passages"):
            Searcher(other)
    finally:
        (model / "config.json").write_text(before, encoding="utf-8")


def test_text_without_passages_is_refused(recipe, tmp_path):
    with pytest.raises(DataError, match=r"no passage of .* has 900 words.*passages\.min_words"):
        headstart.index({**recipe, "output": str(tmp_path / "x"), "passages": {"min_words": 900}}, quiet=True)


def test_a_missing_library_names_the_command_that_brings_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "usearch.index", None)
    with pytest.raises(ResourceError, match=r"usearch is missing.*pip install 'headstart\[search\]'"):
        stage.graph_library()


def test_in_whole_numbers_a_score_is_a_cosine_too(recipe, verses, tmp_path):
    folder = headstart.index({**recipe, "output": str(tmp_path / "i8"), "graph": {"dtype": "i8"}}, quiet=True)
    (answer,) = headstart.search(folder, next(verse for verse in verses if len(verse.split()) > 9), count=3)
    assert answer["passages"][0]["score"] == pytest.approx(1, abs=0.02)
    assert all(-1.01 <= passage["score"] <= 1.01 for passage in answer["passages"])
