"""What every adaptation may set for itself, because methods want different rates."""

from __future__ import annotations

from pydantic import Field

from headstart.core.config import Section


class AdaptationSettings(Section):
    """Settings that stand in for those of `training` when this adaptation runs."""

    learning_rate: float | None = Field(None, gt=0, le=1, description="in place of training.learning_rate")
    budget: str | None = Field(None, description="in place of training.budget")
