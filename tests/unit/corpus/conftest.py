"""The engine's frames run in a process of their own: Daft may abort at a process's exit, with all work done."""

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
sys.path.insert(0, {here!r})
module, _, name = function.partition(":")
found = getattr(importlib.import_module(module), name)(**arguments)
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="session")
def in_a_process() -> Callable[..., Any]:
    """Calls "module:function" with plain arguments where the engine is started, and returns its plain result."""
    pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

    def call(function: str, **arguments: Any) -> Any:
        code = _CODE.format(here=str(__file__).rpartition("/")[0])
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps([function, arguments]), capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert done.stdout.strip(), done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return call
