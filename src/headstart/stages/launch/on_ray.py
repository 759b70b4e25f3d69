"""A script that submits a job to a Ray cluster, again if it fails, because Ray itself does not repeat a job."""

from __future__ import annotations

import shlex

from headstart.stages.launch.job import Job

_ATTEMPTS = 4
_BODY = """\
#!/bin/bash
# headstart launch --on ray. RAY_ADDRESS names the cluster. Data and output have the same paths on every machine.
# A job whose machine is lost is submitted again, and the same command resumes the run.
for attempt in {{1..{attempts}}}; do
    ray job submit {options} -- env -C {folder} {command} && exit 0
done
exit 1
"""


def script(job: Job) -> str:
    """Return the script of a job."""
    settings = job.settings
    numbers = {"cpus": settings.cpus or settings.processes, "gpus": settings.gpus}
    options = " ".join(f"--entrypoint-num-{name} {number}" for name, number in numbers.items() if number)
    return _BODY.format(attempts=_ATTEMPTS, options=options, folder=shlex.quote(str(job.folder)), command=job.shell())
