"""The settings of `headstart probe`."""

from __future__ import annotations

from pydantic import Field

from headstart.core.config import Section


class ProbeSettings(Section):
    """Which probes run, on which texts, and on how many of them."""

    probes: list[str] = Field([], description="names of probes, as `headstart list probes` names them; empty: all")
    text: str | None = Field(None, description="a file of your own that one probe reads in place of its data")
    limit: int | None = Field(
        None, ge=1, description="rows of each group of the data that are used; null: the default of each probe"
    )
    over_run: bool = Field(
        False, description="run the probes on the snapshots of a pre-training run too, and draw what was learned when"
    )
    seed: int = Field(0, ge=0, description="chooses the rows, and initializes the untrained network")
    overwrite: bool = Field(False, description="replace an earlier output of `headstart probe`")
