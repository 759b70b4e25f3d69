"""Pre-training objectives, one file each; `headstart.objectives.MaskedLM` imports its module on first use."""

from __future__ import annotations

from typing import Any

from headstart.core import registry


def __getattr__(name: str) -> Any:
    """Import an objective's class by its name, so that listing them costs no import of torch."""
    for entry in registry.names("objectives"):
        if registry.target("objectives", entry).endswith(f":{name}"):
            return registry.resolve("objectives", entry)
    raise AttributeError(f"headstart.objectives has no {name!r}; known: {', '.join(registry.names('objectives'))}")
