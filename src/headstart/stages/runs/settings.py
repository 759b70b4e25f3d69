"""The training settings of verbs whose runs can be kept in an object store."""

from __future__ import annotations

from pydantic import Field, field_validator

from headstart.corpus.read.clients.fsspec_store import WRITABLE
from headstart.corpus.read.urls import without_options
from headstart.training.settings import TrainingSettings


class StoredTraining(TrainingSettings):
    """The settings of the training loop, and the store for its checkpoints."""

    checkpoint_store: str | None = Field(
        None,
        description="URL of a folder in an object store (s3, gs, az) to which `pretrain` and `finetune` upload each "
        "checkpoint; a run whose output is empty resumes from it",
    )

    @field_validator("checkpoint_store")
    @classmethod
    def _is_writable(cls, value: str | None) -> str | None:
        if value is not None and value.partition("://")[0] not in WRITABLE:
            raise ValueError(
                f"it is {without_options(value)!r}; checkpoints are uploaded to URLs of {', '.join(WRITABLE)}."
            )
        return value
