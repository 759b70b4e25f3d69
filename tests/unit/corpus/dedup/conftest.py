"""Runs the engine's frames in a separate process, because Daft may abort when a process exits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

_CODE = """
import importlib, json, os, sys
from headstart.corpus.parts import engine
engine.start(engine.EngineConfig())
function, arguments = json.loads(sys.stdin.read())
sys.path.insert(0, {folder!r})
module, _, name = function.partition(":")
result = getattr(importlib.import_module(module), name)(**arguments)
print(json.dumps(result), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="session")
def in_a_process() -> Callable[..., Any]:
    """Calls "module:function" of this folder with JSON arguments in a process with the engine; returns its result."""
    pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

    def call(function: str, **arguments: Any) -> Any:
        code = _CODE.format(folder=str(__file__).rpartition("/")[0])
        process = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps([function, arguments]), capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert process.stdout.strip(), process.stderr[-3000:]
        return json.loads(process.stdout.strip().splitlines()[-1])

    return call
