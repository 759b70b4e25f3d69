"""A task file for SkyPilot's managed jobs, which find machines in several clouds and replace preempted ones."""

from __future__ import annotations

from typing import Any

import yaml

from headstart.stages.launch.job import PORT, Job
from headstart.stages.runs.launch import RESUMABLE

_FAILURES = 3
_HEADER = """\
# headstart launch --on skypilot. Submit with: sky jobs launch FILE
# A new machine has an empty disk: with training.checkpoint_store, the run resumes from the store.
"""


def task(job: Job) -> str:
    """Return the task as YAML."""
    settings = job.settings
    resources: dict[str, Any] = {
        "accelerators": f"{settings.gpu_type}:{settings.gpus}" if settings.gpus else None,
        "cpus": None if settings.cpus is None else f"{settings.cpus}+",
        "memory": None if settings.memory_gb is None else f"{settings.memory_gb}+",
        "image_id": None if settings.image is None else f"docker:{settings.image}",
        "use_spot": True,
        "job_recovery": {"max_restarts_on_errors": _FAILURES, "recover_on_exit_codes": [RESUMABLE]},
    }
    head = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'
    document: dict[str, Any] = {
        "name": settings.name,
        "num_nodes": settings.nodes,
        "workdir": ".",
        "resources": {name: value for name, value in resources.items() if value is not None},
        **({} if settings.image else {"setup": "pip install headstart"}),
        "run": job.shell(f"{head}:{PORT}", '"$SKYPILOT_NUM_NODES"'),
    }
    return _HEADER + yaml.safe_dump(document, sort_keys=False, width=1000)
