"""Training, evaluation and generation run on a device that is not the CPU, and the host rarely waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.matrix"], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_every_case_runs_on_the_device(lines):
    assert {line["verb"] for line in lines} == {"pretrain", "finetune", "generate"}
    assert not [line for line in lines if "error" in line]


@pytest.mark.slow
def test_no_copy_leaves_its_source_before_it_is_complete(lines):
    assert not [line for line in lines if line["unpinned"]]


@pytest.mark.slow
def test_the_host_does_not_wait_between_two_log_entries(lines):
    waits = {" ".join(filter(None, line["names"])): max(line.get("waits") or [0]) for line in lines}
    assert waits["masked_lm encoder modernbert"] == 0
    # transformers looks once per micro-batch whether a padding mask masks anything; a step has two micro-batches.
    assert waits["full classify encoder bert"] == 2
