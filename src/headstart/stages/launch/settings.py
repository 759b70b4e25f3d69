"""The settings of `headstart launch`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section

SAVE_SECONDS = 300
"""Time to save a checkpoint between the signal of a scheduler and the end of the job."""


class LaunchSettings(Section):
    """Where a recipe runs, and what it gets there."""

    on: Literal["slurm", "kubernetes", "skypilot", "ray"] = Field(description="the scheduler")
    name: str = Field(max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", description="the name of the job")
    nodes: int = Field(1, ge=1, description="number of machines")
    processes: int = Field(1, ge=1, description="data-parallel processes on each machine")
    gpus: int = Field(0, ge=0, description="GPUs of each machine")
    gpu_type: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]+$", description="the kind of GPU, such as A100")
    cpus: int | None = Field(None, ge=1, description="cores of each machine")
    memory_gb: int | None = Field(None, ge=1, description="memory of each machine in GB")
    time: str = Field("24:00:00", pattern=r"^(\d+-)?\d{1,3}:[0-5]\d:[0-5]\d$", description="time limit, slurm only")
    partition: str | None = Field(None, pattern=r"^[\w.,-]+$", description="partition, slurm only")
    account: str | None = Field(None, pattern=r"^[\w.-]+$", description="account, slurm only")
    image: str | None = Field(None, pattern=r"^\S+$", description="container image, kubernetes and skypilot")
    volume: str | None = Field(None, pattern=r"^[a-z0-9.-]+$", description="persistent volume claim, kubernetes only")

    @field_validator("time")
    @classmethod
    def _time_to_train(cls, value: str) -> str:
        days, _, clock = value.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        if int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds < 2 * SAVE_SECONDS:
            raise ValueError(
                f"time is {value}, and the run is asked to save {SAVE_SECONDS} s before the limit. Set it to "
                f"{2 * SAVE_SECONDS // 60} minutes or more."
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.on == "ray" and self.nodes > 1:
            raise ValueError(
                "nodes must be 1 on ray: the command of a Ray job runs on one machine. A study uses all machines of a "
                "Ray cluster with execution.on=ray."
            )
        if self.on == "kubernetes" and (self.image is None or self.volume is None):
            raise ValueError(
                "kubernetes needs an image with Headstart (the Dockerfile of the repository builds one) and a volume: "
                "a persistent volume claim for data and output."
            )
        if self.on == "skypilot" and self.gpus and self.gpu_type is None:
            raise ValueError("skypilot needs gpu_type, such as A100, if gpus is not 0.")
        return self
