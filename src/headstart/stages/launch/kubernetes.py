"""Manifests for Kubernetes: the recipe, the job, and a service by which the machines of the job find each other."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from headstart.stages.launch.job import PORT, Job
from headstart.stages.launch.settings import SAVE_SECONDS
from headstart.stages.runs.launch import RESUMABLE

_REFUSED = 2
"""Exit code of a recipe or of data that Headstart refuses: another attempt would fail in the same way."""
_FAILURES = 3
_HEADER = """\
# headstart launch --on kubernetes. Submit with: kubectl apply -f FILE
# A pod that is evicted or preempted saves a checkpoint, exits with code 75 and is replaced; the new one resumes.
"""


def manifests(job: Job) -> str:
    """Return the manifests of a job as YAML."""
    documents = [_recipe(job), *([_service(job)] if job.settings.nodes > 1 else []), _job(job)]
    return _HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=1000)


def _recipe(job: Job) -> dict[str, Any]:
    text = job.recipe.read_text(encoding="utf-8")
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job), "data": {"recipe.yaml": text},
    }  # fmt: skip


def _service(job: Job) -> dict[str, Any]:
    """Return a headless service, which gives each pod a name."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _metadata(job),
        "spec": {"clusterIP": "None", "selector": {"job-name": job.settings.name}, "publishNotReadyAddresses": True},
    }  # fmt: skip


def _job(job: Job) -> dict[str, Any]:
    settings = job.settings
    indexed = {"completionMode": "Indexed", "completions": settings.nodes, "parallelism": settings.nodes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job),
        "spec": {
            **(indexed if settings.nodes > 1 else {}),
            "backoffLimit": _FAILURES * settings.nodes,
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {"metadata": {"labels": {"app": settings.name}}, "spec": _pod(job)},
        },
    }


def _failure_rules() -> list[dict[str, Any]]:
    """Replace a pod that was interrupted without counting it; do not repeat what Headstart refused."""
    codes = {"containerName": "headstart", "operator": "In"}
    return [
        {"action": "Ignore", "onExitCodes": {**codes, "values": [RESUMABLE]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "FailJob", "onExitCodes": {**codes, "values": [_REFUSED]}},
    ]


def _pod(job: Job) -> dict[str, Any]:
    settings = job.settings
    limits: dict[str, Any] = {
        "cpu": settings.cpus, "memory": None if settings.memory_gb is None else f"{settings.memory_gb}Gi",
        "nvidia.com/gpu": settings.gpus or None,
    }  # fmt: skip
    container = {
        "name": "headstart",
        "image": settings.image,
        "command": _command(job),
        "workingDir": "/workspace",
        "resources": {"limits": {name: value for name, value in limits.items() if value is not None}},
        "volumeMounts": [
            {"name": "recipe", "mountPath": "/recipe"},
            {"name": "workspace", "mountPath": "/workspace"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SAVE_SECONDS,
        **({"subdomain": settings.name} if settings.nodes > 1 else {}),
        "containers": [container],
        "volumes": [
            {"name": "recipe", "configMap": {"name": settings.name}},
            {"name": "workspace", "persistentVolumeClaim": {"claimName": settings.volume}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _command(job: Job) -> list[str]:
    name = job.settings.name
    words = shlex.split(job.shell(f"{name}-0.{name}:{PORT}"))
    return ["/recipe/recipe.yaml" if word == str(job.recipe) else word for word in words]


def _metadata(job: Job) -> dict[str, Any]:
    return {"name": job.settings.name}
