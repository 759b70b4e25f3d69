"""The files of `headstart launch` are valid, and the batch script saves, queues itself again and passes codes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from headstart.core import config
from headstart.core.errors import ArtifactError, RecipeError, ResourceError
from headstart.stages.launch import run as stage
from headstart.stages.launch.job import Job
from headstart.stages.launch.settings import LaunchSettings

KUBERNETES = {"on": "kubernetes", "image": "registry.example/headstart:1", "volume": "runs"}


def job_of(folder: Path, verb: str = "pretrain", **settings) -> Job:
    recipe = folder / "a recipe.yaml"
    recipe.write_text("objective: masked_lm  # 'quoted'\n", encoding="utf-8")
    command = ("headstart", verb, str(recipe), "training.budget=3 steps")
    filled = config.fill(LaunchSettings, {"on": "slurm", "name": "wiki", **settings}, "launch")
    return Job(filled, command, recipe, folder)


def bash_accepts(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_batch_script_asks_for_what_the_job_needs(tmp_path, nodes):
    job = job_of(tmp_path, nodes=nodes, processes=8, gpus=8, gpu_type="a100", cpus=64, memory_gb=500, partition="gpu")
    text = stage.write(job).read_text(encoding="utf-8")
    assert bash_accepts(text) and text.startswith("#!/bin/bash\n#SBATCH ")
    options = {line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")}
    expected = {f"nodes={nodes}", "gpus-per-node=a100:8", "cpus-per-task=64", "mem=500G", "partition=gpu", "requeue"}
    assert expected <= options and "signal=B:USR1@300" in options and not any("None" in option for option in options)
    assert shlex.join(job.command) in text and ("srun headstart" in text) == (nodes > 1)


_RUN = """#!/bin/bash
printf '%s\\n' "$@" > arguments
trap 'sleep 0.2; echo saved >> progress; exit 75' USR1
[[ -e progress ]] && exit "$(cat code)"
echo started > ready
while :; do sleep 0.02; done
"""
_SCONTROL = """#!/bin/bash
echo "$@" >> requeued
"""


@pytest.mark.parametrize("signals", [[signal.SIGUSR1], [signal.SIGTERM], [signal.SIGUSR1, signal.SIGTERM]])
def test_a_signaled_job_saves_and_is_queued_again(tmp_path, signals):
    """The programs are small scripts; bash, the signals and the exit codes are real."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("headstart", _RUN), ("scontrol", _SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    job = job_of(tmp_path, processes=2)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", str(stage.write(job))]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline and running.poll() is None
    for number in signals:
        running.send_signal(number)
    assert running.wait(30) == 75
    assert (tmp_path / "requeued").read_text() == "requeue 7\n" and (tmp_path / "progress").read_text() == "saved\n"
    assert (tmp_path / "arguments").read_text().splitlines() == [*job.command[1:], "--processes", "2"]
    for code in (0, 2):
        (tmp_path / "code").write_text(str(code))
        assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == code
    assert (tmp_path / "requeued").read_text() == "requeue 7\n", "a job that ended by itself was queued again"


@pytest.mark.parametrize("nodes", [1, 3])
def test_kubernetes_gets_the_recipe_and_replaces_interrupted_pods(tmp_path, nodes):
    job = job_of(tmp_path, **KUBERNETES, nodes=nodes, processes=2, gpus=2)
    path = stage.write(job)
    documents = {doc["kind"]: doc for doc in yaml.safe_load_all(path.read_text(encoding="utf-8"))}
    assert set(documents) == {"ConfigMap", "Job"} | ({"Service"} if nodes > 1 else set())
    assert documents["ConfigMap"]["data"]["recipe.yaml"] == job.recipe.read_text(encoding="utf-8")
    spec = documents["Job"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ignored = [rule["onExitCodes"]["values"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert ignored == [[75], [2]] and pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 300
    assert container["command"][:3] == ["headstart", "pretrain", "/recipe/recipe.yaml"]
    assert container["command"][3] == "training.budget=3 steps"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert spec.get("completions", 1) == nodes
    if nodes > 1:
        assert container["command"][-2:] == ["--rendezvous", "wiki-0.wiki:29500"] and pod["subdomain"] == "wiki"


@pytest.mark.parametrize("nodes", [1, 2])
def test_skypilot_recovers_an_interrupted_run(tmp_path, nodes):
    job = job_of(tmp_path, on="skypilot", nodes=nodes, gpus=8, gpu_type="A100", processes=8)
    task = yaml.safe_load(stage.write(job).read_text(encoding="utf-8"))
    assert task["num_nodes"] == nodes and task["resources"]["accelerators"] == "A100:8"
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    assert bash_accepts(task["run"]) and task["run"].startswith(shlex.join(job.command))


def test_a_ray_job_runs_in_the_folder_of_the_recipe(tmp_path):
    job = job_of(tmp_path, on="ray", gpus=2, processes=2)
    text = stage.write(job).read_text(encoding="utf-8")
    assert bash_accepts(text) and "--entrypoint-num-gpus 2" in text
    assert f"-- env -C {shlex.quote(str(tmp_path))} {shlex.join(job.command)} --processes 2" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on": "kubernetes"}, "needs an image"),
        ({"on": "ray", "nodes": 2}, "nodes must be 1 on ray"),
        ({"on": "skypilot", "gpus": 1}, "needs gpu_type"),
        ({"on": "pbs"}, "slurm"),
        ({"time": "soon"}, "time"),
        ({"name": "No Name"}, "name"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "partition"),
    ],
)
def test_settings_that_a_scheduler_does_not_accept_are_refused(tmp_path, settings, message):
    with pytest.raises(RecipeError, match=message):
        job_of(tmp_path, **settings)


def test_only_training_runs_in_several_processes(tmp_path):
    with pytest.raises(RecipeError, match="belongs to `headstart study`"):
        stage.write(job_of(tmp_path, verb="study", nodes=2))


def test_another_file_is_not_replaced(tmp_path):
    path = stage.write(job_of(tmp_path))
    assert stage.write(job_of(tmp_path)) == path
    with pytest.raises(ArtifactError, match="exists already"):
        stage.write(job_of(tmp_path, cpus=4))
    assert stage.write(job_of(tmp_path, cpus=4), overwrite=True) == path


def test_a_missing_scheduler_is_reported_with_the_command(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    path = stage.write(job)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ResourceError, match=f"`sbatch` is not installed.*sbatch {path}"):
        stage.submit(job, path)
