"""A small index, built once for all tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import headstart


@pytest.fixture(scope="session")
def model(checkpoint, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(checkpoint("bert"), folder)
    return folder


@pytest.fixture(scope="session")
def recipe(verses, model, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("index")
    lines = [verse for verse in verses if verse][:120]
    documents = ["\n".join([*lines[start : start + 12], "Too short."]) for start in range(0, 120, 12)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    corpus = {"files": [str(folder / "text.txt")]}
    return {"output": str(folder / "index"), "model": str(model), "corpus": corpus, "passages": {"min_words": 4}}


@pytest.fixture(scope="session")
def built(recipe) -> Path:
    return Path(headstart.index(recipe, quiet=True))
