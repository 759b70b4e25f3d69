"""Pre-training objectives, one file each; `headstart.objectives.MaskedLM` imports its module on first use."""

from __future__ import annotations

from typing import Any

from headstart.core import registry


def __getattr__(name: str) -> Any:
    """Import the class of an objective by its name, so that listing objectives does not import torch."""
    for entry in registry.names("objectives"):
        if registry.target("objectives", entry).endswith(f":{name}"):
            return registry.resolve("objectives", entry)
    raise AttributeError(f"headstart.objectives has no {name!r}; known: {', '.join(registry.names('objectives'))}")
