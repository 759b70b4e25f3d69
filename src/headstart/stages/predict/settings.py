"""The settings of `headstart predict`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headstart.core.config import Section


class PredictSettings(Section):
    """What is written about each row, and where the rows are computed."""

    top_k: int | None = Field(None, ge=1, description="also write the k best labels with their probabilities")
    scores: bool = Field(False, description="also write the probability of every label, one column per label")
    only_predictions: bool = Field(False, description="leave out the columns of the input")
    processes: int | None = Field(
        None, ge=1, description="processes, each with one thread on a CPU; null for the number of cores, or 1 on a GPU"
    )
    on: Literal["local", "ray"] = Field("local", description="this machine, or a Ray cluster")
    address: str | None = Field(None, description="address of the Ray cluster; null starts a local one")
    chunk_rows: int = Field(512, ge=1, description="rows that are computed and saved together")
    overwrite: bool = Field(False, description="replace an existing output file")
