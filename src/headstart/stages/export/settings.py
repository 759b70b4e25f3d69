"""The settings of `headstart export`."""

from __future__ import annotations

from pydantic import Field

from headstart.core.config import Section


class ExportSettings(Section):
    """The format, what the export may lose, and how it is measured."""

    to: str = Field(description="the format, as `headstart list exports` names it")
    tolerance: float = Field(
        1.0, ge=0, description="how much the first metric may lose, in points (1.0: from 90.0 to 89.0)"
    )
    data: str | None = Field(None, description="labeled rows to compare on; null for the test set of the run")
    threads: int | None = Field(None, ge=1, description="threads of every runtime; null for those that torch uses")
    repetitions: int = Field(20, ge=1, description="timed calls of each model for each batch size; the median counts")
    repo: str | None = Field(None, description="for `hub`: the name of the repository, such as name/model")
    license: str | None = Field(None, description="for `hub`: the license of the model, as the Hub names it")
    language: list[str] = Field([], description="for `hub`: the languages of the texts, such as en")
    upload: bool = Field(False, description="for `hub`: upload the folder; without it, only the folder is written")
    overwrite: bool = Field(False, description="replace an earlier export in the output folder")
