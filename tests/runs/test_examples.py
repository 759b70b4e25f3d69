"""Every example in the documentation runs as it stands, offline, and its loss falls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headstart

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_its_loss_falls(example, tmp_path):
    paths = [str(Path(headstart.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(found) for found in re.findall(r"'loss': '?([\d.]+)", done.stdout)]
    assert len(losses) >= 3, done.stdout
    assert losses[-1] < 0.95 * losses[0], losses
    assert list(tmp_path.rglob("model.safetensors")), "the trained model is saved"


def test_there_are_examples():
    assert {"t5_trainer", "electra_trainer"} <= {path.stem for path in EXAMPLES}
