"""Nothing that is read from disk may run code: no pickle, no remote code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"torch.load", "torch.save", "yaml.unsafe_load", "yaml.full_load"}
METHODS = {"read_pickle", "to_pickle"}
KEYWORDS = {"trust_remote_code", "allow_pickle"}
LOADER = "checkpoint/load.py"
"""The only module that may load a checkpoint: it checks the folder first."""


def breaches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each use of a forbidden module, call or keyword, under any local name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
                if top in MODULES:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if node.module.partition(".")[0] in MODULES:
                    yield node.lineno, f"from {node.module} import {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            dotted = _dotted(node, names)
            if dotted in CALLS or (isinstance(node, ast.Attribute) and node.attr in METHODS):
                yield node.lineno, dotted
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.value.lineno, f"{node.arg}={ast.unparse(node.value)}"
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in KEYWORDS and ast.unparse(value) != "False":
                    yield node.lineno, f"{key.value}: {ast.unparse(value)}"


def loads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each call that loads a checkpoint."""
    for node in ast.walk(tree):
        named = isinstance(node, ast.Constant) and node.value == "from_pretrained"
        if named or (isinstance(node, ast.Attribute) and node.attr == "from_pretrained"):
            yield node.lineno, "from_pretrained"
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "SentenceTransformer":
            yield node.lineno, "SentenceTransformer"


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def test_source_holds_no_pickle():
    files = sorted(SOURCE.rglob("*.py"))
    assert files
    found = [
        f"{path.relative_to(SOURCE)}:{line} {what}"
        for path in files
        for line, what in breaches(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "use safetensors or JSON instead of: " + "; ".join(found)


def test_only_the_guarded_loader_loads_checkpoints():
    found = [
        f"{path.relative_to(SOURCE)}:{line} {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.as_posix().endswith(LOADER)
        for line, what in loads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, f"load checkpoints with headstart/{LOADER} instead of: " + "; ".join(found)


@pytest.mark.parametrize(
    "snippet",
    [
        "AutoModel.from_pretrained(folder)",
        "getattr(transformers, name).from_pretrained(folder)",
        "load = PeftModel.from_pretrained",
        "getattr(model_class, 'from_pretrained')(folder)",
        "library('model').SentenceTransformer(folder)",
    ],
)
def test_a_load_is_found(snippet):
    assert list(loads(ast.parse(snippet)))


@pytest.mark.parametrize(
    "snippet",
    [
        "import pickle",
        "import joblib as jobs",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load as read\nread('x')",
        "import torch\nread = torch.load",
        "import torch\ntorch.save({}, 'x')",
        "frame.to_pickle('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=flag)",
        "AutoModel.from_pretrained('x', **{'trust_remote_code': True})",
    ],
)
def test_a_breach_is_found(snippet):
    assert list(breaches(ast.parse(snippet)))


@pytest.mark.parametrize(
    "snippet",
    ["import json\njson.load(f)", "np.load('x', allow_pickle=False)", "model.load('x')", "f(trust_remote_code=False)"],
)
def test_the_innocent_pass(snippet):
    assert not list(breaches(ast.parse(snippet)))
