"""Imports run one way: cli, stages, nouns, core; and core starts without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headstart

pytest.importorskip("importlinter", reason="import-linter is missing; `pip install 'headstart[dev]'` brings it")

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint(python_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT, "--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")]
    environment = os.environ | {"PYTHONPATH": str(python_path), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=python_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package as installed, in a folder where it may be spoilt."""
    source = Path(headstart.__file__).parent
    shutil.copytree(source, tmp_path / "headstart", ignore=shutil.ignore_patterns("__pycache__", "shipped"))
    return tmp_path


def test_contracts_are_kept(copy):
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/errors.py", "import torch", "core starts without torch"),
        ("core/errors.py", "from headstart.tokens import rows", "Imports run one way"),
        ("tasks/classify.py", "import headstart.training", "Imports run one way"),
        ("tokens/__init__.py", "import headstart.stages", "Imports run one way"),
        ("drawer.py", "", "Imports run one way"),
    ],
)
def test_a_breach_is_found(copy, module, line, contract):
    with (copy / "headstart" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = lint(copy)
    assert result.returncode != 0
    assert any(contract in row and "BROKEN" in row for row in result.stdout.splitlines()), result.stdout + result.stderr
