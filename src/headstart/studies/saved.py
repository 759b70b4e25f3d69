"""Read a study file, also the copy that a study keeps in its output, where keys may have been renamed since.

Nothing here imports torch, so that a wrong file is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.core import config, registry, renames
from headstart.core.config import set_dotted
from headstart.studies.definition import Base, Settings, Study
from headstart.studies.graph import CELLS

DEFINITION = "study.yaml"
_PROBE = re.compile(r"(?<=\sprobe\.)\w+")
"""The name of a probe in a contrast."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file; keys renamed since then are translated in the copy that a study keeps in its output."""
    path = config.find(path)
    raw = config.parse(path)
    if path.name == DEFINITION and (path.parent / CELLS).is_dir():
        raw = upgrade(raw)
    return config.fill(Study, config.apply_overrides(raw, overrides), where=str(path))


def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved study with the current keys: its own, those of its base recipes, and those that its axes set.

    A probe that was renamed is renamed in the contrasts of claims too.
    """
    study = renames.upgrade(raw)
    for claim in study.get("claims", []):
        claim["contrast"] = _PROBE.sub(lambda name: renames.ENTRIES.get(name[0], name[0]), claim["contrast"])
    base = study.get("base", {})
    study["base"] = base | {name: _upgrade_recipe(base[name]) for name in Base.model_fields if base.get(name)}
    study["axes"] = {
        axis: {level: _upgrade_settings(settings) for level, settings in levels.items()}
        for axis, levels in study.get("axes", {}).items()
    }
    return study


def _upgrade_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with the current keys; a section given by its name alone becomes a section."""
    sections = {group.removesuffix("s"): selector for group, selector in registry.SELECTOR.items()}
    return renames.upgrade({
        key: {sections[key]: value} if key in sections and isinstance(value, str) else value
        for key, value in recipe.items()
    })  # fmt: skip


def _upgrade_settings(settings: Settings) -> Settings:
    """Return the settings of a level with the current dotted keys."""
    upgraded: Settings = {}
    for dotted, value in settings.items():
        name, _, key = dotted.partition(".")
        if not key:
            upgraded[name] = _upgrade_recipe(value)
            continue
        recipe: dict[str, Any] = {}
        set_dotted(recipe, key, value)
        node: Any = _upgrade_recipe(recipe)
        path = [name]
        for _ in key.split("."):
            ((last, node),) = node.items()
            path.append(last)
        upgraded[".".join(path)] = node
    return upgraded
