"""On a real Slurm of two nodes: a pre-training on both of them, and a study with one job per cell, are interrupted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.runs import slurm_cluster

STEPS = 200
_WAIT_SECONDS = 900

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(reason := slurm_cluster.missing()), reason=reason),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[slurm_cluster.Cluster]:
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def shell(tmp_path) -> dict[str, str]:
    """The environment in which jobs are submitted, and which they inherit."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "headstart").write_text(f'#!/bin/bash\nexec {sys.executable} -m headstart "$@"\n')
    (tools / "headstart").chmod(0o755)
    paths = os.pathsep.join(filter(None, sys.path))
    return {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def wait_for(condition: Callable[[], bool], what: str, log: Callable[[], str]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen\n{log()}"
        time.sleep(0.5)


def test_a_pretraining_on_two_nodes_is_preempted_queued_again_and_finishes(
    cluster, shell, headstart, pretrained, tmp_path
):  # fmt: skip
    shared = (
        str(pretrained.folder / "recipe.yaml"), f"training.budget={STEPS} steps", "training.save_interval_minutes=60"
    )  # fmt: skip
    options = ("--nodes=2", "--processes=1", "--cpus=1", "--name=two", "--submit")
    submitted = cluster.run(
        "headstart", "launch", *shared, "output=runs/two", *options, environment=shell, folder=tmp_path
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.split()[-1]
    output = tmp_path / f"two-{job}.log"

    def log() -> str:
        return f"{cluster.job(job)}\n{output.read_text() if output.is_file() else 'no log'}"

    curve = tmp_path / "runs" / "two" / "logs" / "metrics.jsonl"
    wait_for(lambda: curve.is_file() and curve.read_text().count('"loss"') > 10, "the first steps", log)
    assert cluster.job(job)["NodeList"] == "node[0-1]"
    cluster.run("scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: cluster.job(job)["Restarts"] == "1", "the requeue", log)
    assert list((tmp_path / "runs" / "two" / "checkpoints").glob("step-*")), "queued again without saving"
    wait_for(lambda: cluster.job(job)["JobState"] == "COMPLETED", "the end of the second attempt", log)
    headstart("pretrain", *shared, f"output={tmp_path / 'one'}", "training.micro_batch_size=8", "--quiet")
    job_weights, expected = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "runs" / "two", tmp_path / "one")
    )
    assert all(torch.equal(job_weights[name], value) for name, value in expected.items())
    assert output.read_text().count("interrupted; run the same command again to resume") == 1


def test_a_study_with_a_job_per_cell_finishes_although_a_job_is_queued_again(cluster, shell, tmp_path):
    pytest.importorskip("submitit", reason="`pip install 'headstart[study]'`")
    for split, count in (("train", 60), ("validation", 20), ("test", 30)):
        rows = [f"a {('good', 'bad')[number % 2]} day {number},{('yes', 'no')[number % 2]}" for number in range(count)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    finetune = {
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {split: f"{tmp_path}/{split}.csv" for split in ("train", "validation", "test")},
    }  # fmt: skip
    study = {
        "question": "Does it learn?", "output": str(tmp_path / "study"), "base": {"finetune": finetune}, "axes": {},
        "compare": [], "baselines": ["majority", "svm"], "seeds": 1, "overlap": False, "reference": "majority",
        "claims": [{"statement": "an SVM learns", "contrast": "svm > majority"}],
        "execution": {"on": "slurm", "workers": 2, "slurm": {"slurm_partition": "all"}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    log = tmp_path / "study.log"
    words = ("headstart", "study", "run", str(tmp_path / "study.yaml"), "--quiet")
    run = cluster.start(*words, environment=shell, folder=tmp_path, log=log)
    jobs: list[str] = []

    def running() -> bool:
        assert run.poll() is None, log.read_text()
        jobs[:] = cluster.run("squeue", "-h", "-t", "R", "-o", "%A").stdout.split()
        return bool(jobs)

    wait_for(running, "a job", log.read_text)
    assert cluster.run("scontrol", "requeue", jobs[0]).returncode == 0
    wait_for(lambda: run.poll() is not None, "the end of the study", log.read_text)
    assert run.returncode == 0, log.read_text()
    assert cluster.job(jobs[0])["Restarts"] == "1"
    finished = [path for path in (tmp_path / "study" / "cells").iterdir() if (path / "headstart.json").is_file()]
    assert len(finished) == 2 and (tmp_path / "study" / "tables" / "table.csv").is_file()
