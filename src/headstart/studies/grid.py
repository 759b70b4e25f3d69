"""The grid of a study: the systems that are compared, their contexts, and the settings of each point."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headstart.core.config import set_dotted
from headstart.studies.definition import Settings, Study, level_names


@dataclass(frozen=True)
class System:
    """One side of a comparison: levels of the compared axes, or a baseline with the levels that affect it."""

    levels: tuple[str, ...]
    baseline: str | None = None

    @property
    def name(self) -> str:
        """Return its name in tables, levels joined by /."""
        own = (self.baseline,) if self.baseline else ()
        return "/".join((*own, *self.levels)) or "base"

    def has(self, parts: tuple[str, ...]) -> bool:
        """Return True if it has all of these levels; the name of a baseline counts as one of its levels."""
        own = {*self.levels, self.baseline} if self.baseline else {*self.levels, "base" if not self.levels else ""}
        # `full` selects the systems with that level, but no baseline.
        return set(parts) <= own and (self.baseline is None or self.baseline in parts)


Context = tuple[str, ...]
"""One level of each axis that is not compared, in the order of the axes."""


@dataclass(frozen=True)
class Point:
    """One combination of levels of all axes, and its settings by dotted key."""

    levels: Mapping[str, str]
    settings: Settings

    def context(self, study: Study) -> Context:
        """Return the levels of the axes that are not compared."""
        return tuple(level for axis, level in self.levels.items() if axis not in study.compare)

    def compared(self, study: Study) -> tuple[str, ...]:
        """Return the levels of the compared axes."""
        return tuple(level for axis, level in self.levels.items() if axis in study.compare)


def points(study: Study) -> Iterator[Point]:
    """Yield every combination of levels, in the order of the file; `is_excluded` applies `exclude` later."""
    axes = list(study.axes)
    for combination in itertools.product(*(study.axes[axis] for axis in axes)):
        levels = dict(zip(axes, combination, strict=True))
        settings: Settings = {}
        for axis, level in levels.items():
            settings |= study.axes[axis][level]
        for entry in study.overrides:
            if _matches(levels, entry.where):
                settings |= {f"finetune.adaptation.{key}": value for key, value in entry.adaptation.items()}
        yield Point(levels, settings)


def _matches(levels: Mapping[str, str], condition: Mapping[str, Any]) -> bool:
    return all(levels.get(axis) in level_names(allowed) for axis, allowed in condition.items())


def is_excluded(study: Study, point: Point, baseline: str | None = None) -> bool:
    """Return True if `exclude` names this point; an entry with `baseline` excludes only that baseline."""
    for entry in study.exclude:
        excluded = entry.get("baseline")
        if (excluded is None) != (baseline is None):
            continue
        if excluded is not None and baseline not in level_names(excluded):
            continue
        if _matches(point.levels, {axis: levels for axis, levels in entry.items() if axis != "baseline"}):
            return True
    return False


def with_settings(base: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a copy of nested sections with dotted settings applied."""
    tree = copy.deepcopy(dict(base))
    # Whole sections come before their own keys, in whatever order the axes are.
    for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
        set_dotted(tree, key, copy.deepcopy(value))
    return tree
