"""Write docs/support.md from the registry: `python docs/make_support.py`.

What fits what is asked of the entries themselves: a task names its families, an objective too, transformers says which
layouts have a head for a task, and an adaptation says what speaks against a task, a family or a layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from headstart.backbones.sizes import SIZES
from headstart.core import registry
from headstart.core.data import Vocabulary
from headstart.tasks.source import has_head

PAGE = Path(__file__).parent / "support.md"
HEADER = """\
# What fits what

<!-- Written by docs/make_support.py; do not edit. -->

Every "yes" is trained, saved and loaded again by the contract suite (`pytest tests/contracts`), in the family's default layout or, where that has no such head, in the first one that has.
"""  # noqa: E501
FAMILIES = tuple(name for name in registry.names("backbones") if name != "checkpoint")


def fits() -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each adaptation, task and family, and why they do not fit; None where they do."""
    for task_name in registry.names("tasks"):
        task = _built("tasks", task_name)
        for family in task.families:
            layouts = [kind for kind in _kinds(family) if has_head(_layout(family, kind), task.auto_class(family))]
            for name in registry.names("adaptations"):
                adaptation = _built("adaptations", name)
                refusals = [adaptation.supports_kind(kind or family) for kind in layouts]
                reason = adaptation.supports(task, family)
                if reason is None and None not in refusals:
                    reason = refusals[0] if refusals else "transformers has no such head"
                yield name, task_name, family, reason


def render() -> str:
    """Return the whole page: objectives by family, adaptations by task, and the reasons."""
    found = {(adaptation, task, family): reason for adaptation, task, family, reason in fits()}
    families = {task: _built("tasks", task).families for task in registry.names("tasks")}
    rows, methods = [], {}
    for adaptation in registry.names("adaptations"):
        cells = []
        for task, its in families.items():
            good = [family for family in its if found[adaptation, task, family] is None]
            cells.append("all" if len(good) == len(its) else ", ".join(good) or "no")
        rows.append([f"`{adaptation}`", *cells])
        for line in _reasons(adaptation, families, found):
            methods.setdefault(line, []).append(f"`{adaptation}`")
    served = [
        [f"`{task}`", *("yes" if family in its else "no" for family in FAMILIES)] for task, its in families.items()
    ]
    objectives = [
        [
            f"`{name}`",
            *("yes" if family in registry.resolve("objectives", name).families else "no" for family in FAMILIES),
        ]
        for name in registry.names("objectives")
    ]
    return "\n".join(
        [
            HEADER,
            "## Objectives on families\n"
            "A `mixture` fits what its members fit; `prefix_lm` on a decoder wants `family: decoder`.\n",
            _table(["objective", *FAMILIES], objectives),
            "\n## Tasks on families\n",
            _table(["task", *FAMILIES], served),
            "\n## Adaptations on tasks\n`all`: every family that the task serves; else those that fit are named.\n",
            _table(["adaptation", *(f"`{task}`" for task in families)], rows),
            "\n## Why not\n",
            *(f"- {', '.join(names)} {line}" for line, names in methods.items()),
            "\n## Layouts that a method refuses\n",
            *_refused_layouts(),
            "",
        ]
    )


def _reasons(adaptation: str, families: dict[str, tuple[str, ...]], found: dict[Any, str | None]) -> list[str]:
    """Return a line for each reason that an adaptation gives, with the tasks and families that it is about."""
    about: dict[str, list[str]] = {}
    for task, its in families.items():
        by_reason: dict[str, list[str]] = {}
        for family in its:
            if (reason := found[adaptation, task, family]) is not None:
                by_reason.setdefault(reason, []).append(family)
        for reason, refused in by_reason.items():
            where = f"`{task}`" + ("" if len(refused) == len(its) else f" on {', '.join(refused)}")
            about.setdefault(reason, []).append(where)
    return [f"for {', '.join(places)}: {reason}" for reason, places in about.items()]


def _refused_layouts() -> list[str]:
    lines = []
    for name in registry.names("adaptations"):
        refusals: dict[str, list[str]] = {}
        for family in FAMILIES:
            for kind in _kinds(family):
                if (reason := _built("adaptations", name).supports_kind(kind or family)) is not None:
                    refusals.setdefault(reason, []).append(kind or family)
        lines += [f"- `{name}`, {', '.join(kinds)}: {reason}" for reason, kinds in refusals.items()]
    return lines


def _kinds(family: str) -> list[str | None]:
    field = registry.resolve("backbones", family).Config.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return [None]
    return sorted(get_args(field.annotation), key=lambda kind: kind != field.default)


def _layout(family: str, kind: str | None) -> Any:
    settings = {registry.SELECTOR["backbones"]: family, "size": "tiny", **({"kind": kind} if kind else {})}
    backbone = registry.build("backbones", registry.resolve("backbones", family).Config.model_validate(settings))
    special = np.arange(100) < 5
    vocabulary = Vocabulary(100, 0, 2, 3, 4, special=special, starts_word=~special, tokens=["x"] * 100)
    return backbone.layout(SIZES["tiny"], vocabulary)


def _built(group: str, name: str) -> Any:
    config = registry.resolve(group, name).Config.model_validate({registry.SELECTOR[group]: name})
    return registry.build(group, config)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
