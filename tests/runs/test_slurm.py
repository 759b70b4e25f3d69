"""On a real Slurm cluster: a job is signaled, saves, is queued again by itself and ends like an undisturbed run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

STEPS = 400
_WAIT_SECONDS = 280


def slurm_answers() -> bool:
    return (
        shutil.which("sbatch") is not None
        and not subprocess.run(["sinfo"], capture_output=True, check=False).returncode
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not slurm_answers(), reason="needs a Slurm cluster: sbatch and a running slurmctld"),
]


def state_of(job: str) -> dict[str, str]:
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_a_preempted_pretraining_is_queued_again_and_finishes(pretrained, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "headstart").write_text(f'#!/bin/bash\nexec {sys.executable} -m headstart "$@"\n')
    (tools / "headstart").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    shared = (
        str(pretrained.folder / "recipe.yaml"), f"training.budget={STEPS} steps", "training.save_interval_minutes=60"
    )  # fmt: skip
    launch = ("headstart", "launch", *shared, "output=runs/job", "--cpus=1", "--name=job", "--submit")
    done = subprocess.run(launch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    assert job.isdecimal(), done.stdout
    curve = tmp_path / "runs" / "job" / "logs" / "metrics.jsonl"
    wait_for(lambda: curve.is_file() and len(curve.read_text().splitlines()) > 20, "the first steps")
    subprocess.run(["scancel", "--signal=USR1", "--batch", job], check=True)
    wait_for(lambda: state_of(job)["Restarts"] == "1", "the requeue")
    assert list((tmp_path / "runs" / "job" / "checkpoints").glob("step-*")), "the job was queued again without saving"
    wait_for(lambda: state_of(job)["JobState"] == "COMPLETED", "the end of the second attempt")
    subprocess.run(["headstart", "pretrain", *shared, "output=runs/alone", "--quiet"], check=True, capture_output=True)
    job_weights, expected = (load_file(tmp_path / "runs" / name / "model.safetensors") for name in ("job", "alone"))
    assert all(torch.equal(job_weights[name], value) for name, value in expected.items())
    assert Path(f"job-{job}.log").read_text().count("interrupted; run the same command again to resume") == 1
