"""A batch script for Slurm that saves before its time limit, queues itself again and resumes."""

from __future__ import annotations

import shlex

from headstart.stages.launch.job import Job
from headstart.stages.launch.settings import SAVE_SECONDS
from headstart.stages.runs.launch import RESUMABLE

_BODY = """
# Before the time limit, and when the job is preempted, Slurm signals this script, and the script signals the run. The
# run saves a checkpoint and exits with code {resumable}; then the job is queued again, and the same command resumes.
signaled=
run=
trap 'signaled=1; [[ -z $run ]] || kill -USR1 "$run" 2>/dev/null' USR1 TERM
{command} &
run=$!
# A signal that came before the number of the process was known.
[[ -z $signaled ]] || kill -USR1 "$run"
while :; do
    signaled=
    wait "$run"
    code=$?
    # A signal ends `wait` early: wait again for the exit code of the run.
    [[ -n $signaled ]] || break
done
if [[ $code -eq {resumable} ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def script(job: Job) -> str:
    """Return the batch script of a job."""
    settings = job.settings
    options = {
        "job-name": settings.name,
        "chdir": str(job.folder),
        "output": f"{settings.name}-%j.log",
        "open-mode": "append",
        "nodes": settings.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": settings.cpus,
        "mem": None if settings.memory_gb is None else f"{settings.memory_gb}G",
        "gpus-per-node": _gpus(job) if settings.gpus else None,
        "time": settings.time,
        "partition": settings.partition,
        "account": settings.account,
        "signal": f"B:USR1@{SAVE_SECONDS}",
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    body = _BODY.format(command=_command(job), resumable=RESUMABLE)
    return "\n".join(["#!/bin/bash", *lines, "#SBATCH --requeue", body])


def _gpus(job: Job) -> str:
    kind = job.settings.gpu_type
    return f"{kind}:{job.settings.gpus}" if kind else str(job.settings.gpus)


def _command(job: Job) -> str:
    """Return the command: as it is on one node, under srun on several, which meet on the first of them."""
    if job.settings.nodes == 1:
        return job.shell()
    head = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    # Jobs that share the first node need different ports.
    return "srun " + job.shell(f"{head}:$((20000 + SLURM_JOB_ID % 10000))", '"$SLURM_JOB_NUM_NODES"')
