"""An index is built, resumes after an interruption, and has the same bytes for the same input."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import DataError, ResourceError
from headstart.stages.search import graph
from headstart.stages.search import index as stage

for package in ("usearch", "sentence_transformers"):
    pytest.importorskip(package, reason="pip install 'headstart[search]'")

BUILD_GRAPH = """
import sys, numpy as np
from pathlib import Path
from headstart.stages.search import graph
from headstart.stages.search.recipe import GraphSettings
vectors = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
built = graph.new_graph(32, GraphSettings())
for start in range(0, len(vectors), 512):
    graph.add(built, vectors[start : start + 512])
built.save(sys.argv[1])
"""
BUILD_INDEX = "import json, sys, headstart; headstart.index(json.loads(sys.argv[1]), quiet=True)"


def run(code: str, argument: str) -> None:
    subprocess.run([sys.executable, "-c", code, argument], check=True, timeout=250)


def test_the_manifest_describes_the_index(built):
    facts = artifact.verify(built, "search index")["index"]
    assert facts["documents"] == 10 and 100 < facts["passages"] <= 120
    assert (
        facts["cost"]["tokens"] > 1000
        and facts["cost"]["flops"] > 1e6
        and "passages of 10 documents" in stage.summary(built)
    )
    assert not (built / "work").exists()
    assert json.loads((built / "cost.json").read_text(encoding="utf-8")) == facts["cost"]


def test_a_graph_has_the_same_bytes_in_every_process(tmp_path):
    for name in ("a", "b"):
        run(BUILD_GRAPH, str(tmp_path / name))
    hashes = {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a", "b")}
    assert len(hashes) == 1


@pytest.mark.slow
def test_an_index_has_the_same_bytes_in_every_process(built, recipe, tmp_path):
    run(BUILD_INDEX, json.dumps({**recipe, "output": str(tmp_path / "again")}))
    for name in (graph.VECTORS, graph.PASSAGES):
        assert (tmp_path / "again" / name).read_bytes() == (built / name).read_bytes()


def test_an_interrupted_run_reuses_its_vectors(recipe, built, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "_CHUNK", 32)
    small_chunks = {**recipe, "output": str(tmp_path / "index")}
    embed, calls = stage.Embedder.vectors, []

    def interrupt(self, texts, batch_tokens=2048):
        if len(texts) > 1:  # A single text is embedded to count the FLOPs per token.
            calls.append(len(texts))
        if len(calls) == 3 and len(texts) > 1:
            raise KeyboardInterrupt
        return embed(self, texts, batch_tokens)

    monkeypatch.setattr(stage.Embedder, "vectors", interrupt)
    with pytest.raises(KeyboardInterrupt):
        headstart.index(small_chunks, quiet=True)
    assert not artifact.is_complete(tmp_path / "index")
    headstart.index(small_chunks, quiet=True)
    passages = artifact.verify(tmp_path / "index")["index"]["passages"]
    assert sum(calls) - 32 == passages, "only the third chunk was embedded twice"


def test_limit_indexes_the_first_passages(recipe, tmp_path):
    folder = headstart.index({**recipe, "output": str(tmp_path), "passages": {"limit": 5}}, quiet=True)
    assert artifact.read_manifest(folder)["index"]["passages"] == 5


def test_text_without_passages_is_an_error(recipe, tmp_path):
    with pytest.raises(DataError, match=r"no passage of .* has 900 words.*passages\.min_words"):
        headstart.index({**recipe, "output": str(tmp_path / "x"), "passages": {"min_words": 900}}, quiet=True)


def test_a_missing_library_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ResourceError, match=r"usearch is missing.*pip install .*(usearch|headstart\[search\])"):
        graph.load_usearch()
