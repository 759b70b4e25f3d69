"""The grid of a study: systems that are compared, contexts they are compared in, and the settings of each point."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headstart.studies.definition import Level, Study, named


@dataclass(frozen=True)
class System:
    """One thing that is compared: levels of the compared axes, or a baseline with those levels that matter to it."""

    levels: tuple[str, ...]
    baseline: str | None = None

    @property
    def name(self) -> str:
        """Return its name in tables, levels joined by /."""
        own = (self.baseline,) if self.baseline else ()
        return "/".join((*own, *self.levels)) or "base"

    def has(self, parts: tuple[str, ...]) -> bool:
        """Say whether it has all of these levels; a baseline goes by its own name too."""
        own = {*self.levels, self.baseline} if self.baseline else {*self.levels, "base" if not self.levels else ""}
        # `full` names the systems with that level, and not a baseline beside them.
        return set(parts) <= own and (self.baseline is None or self.baseline in parts)


Context = tuple[str, ...]
"""One level of each axis that is not compared, in the order of the axes."""


@dataclass(frozen=True)
class Point:
    """One combination of levels of all axes, and its settings by dotted name."""

    levels: Mapping[str, str]
    settings: Level

    def context(self, study: Study) -> Context:
        """Return the levels of the axes that are not compared."""
        return tuple(level for axis, level in self.levels.items() if axis not in study.compare)

    def compared(self, study: Study) -> tuple[str, ...]:
        """Return the levels of the compared axes."""
        return tuple(level for axis, level in self.levels.items() if axis in study.compare)


def points(study: Study) -> Iterator[Point]:
    """Yield every combination of levels, in the order of the file; `exclude` is applied later, by `is_left_out`."""
    axes = list(study.axes)
    for chosen in itertools.product(*(study.axes[axis] for axis in axes)):
        levels = dict(zip(axes, chosen, strict=True))
        settings: Level = {}
        for axis, level in levels.items():
            settings |= study.axes[axis][level]
        for entry in study.overrides:
            if _meets(levels, entry.where):
                settings |= {f"finetune.adaptation.{key}": value for key, value in entry.adaptation.items()}
        yield Point(levels, settings)


def _meets(levels: Mapping[str, str], wanted: Mapping[str, Any]) -> bool:
    return all(levels.get(axis) in named(levels_wanted) for axis, levels_wanted in wanted.items())


def is_left_out(study: Study, point: Point, baseline: str | None = None) -> bool:
    """Say whether an entry of `exclude` names this point; one with `baseline` speaks of that baseline alone."""
    for entry in study.exclude:
        of = entry.get("baseline")
        if (of is None) != (baseline is None) or (of is not None and baseline not in named(of)):
            continue
        if _meets(point.levels, {axis: wanted for axis, wanted in entry.items() if axis != "baseline"}):
            return True
    return False


def with_settings(base: Mapping[str, Any], settings: Level) -> dict[str, Any]:
    """Return a copy of nested sections with dotted settings put in."""
    made = _copied(base)
    # Whole sections before what stands in them, whatever the order of the axes.
    for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
        node = made
        *parents, last = key.split(".")
        for parent in parents:
            below = node.get(parent)
            # A section may be given by its name alone, as `adaptation: lora`.
            node[parent] = below if isinstance(below, dict) else {"name": below} if isinstance(below, str) else {}
            node = node[parent]
        node[last] = _copied(value)
    return made


def _copied(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(one) for one in node] if isinstance(node, list) else node
