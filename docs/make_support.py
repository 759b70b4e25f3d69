"""Write docs/support.md from the registry: `python docs/make_support.py`.

The entries themselves define what they support: tasks and objectives list their families, transformers has heads for
some layouts, and adaptations reject tasks, families or layouts with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headstart.backbones.layouts import kinds, tiny_config
from headstart.core import registry
from headstart.tasks.source import has_head

PAGE = Path(__file__).parent / "support.md"
HEADER = """\
# Supported combinations

<!-- Written by docs/make_support.py; do not edit. -->

The contract suite (`pytest tests/contracts`) trains, saves and reloads every combination marked "yes" or named below, in the family's default layout or, if that has no such head, in the first layout that has one.
"""  # noqa: E501
FAMILIES = tuple(name for name in registry.names("backbones") if name != "checkpoint")


def supported() -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each adaptation, task and family, and the reason if the combination is not supported, else None."""
    for task_name in registry.names("tasks"):
        task = _built("tasks", task_name)
        for family in task.families:
            layouts = [kind for kind in kinds(family) if has_head(tiny_config(family, kind), task.auto_class(family))]
            for name in registry.names("adaptations"):
                adaptation = _built("adaptations", name)
                reasons = [adaptation.supports_kind(kind or family) for kind in layouts]
                reason = adaptation.supports(task, family)
                if reason is None and None not in reasons:
                    reason = reasons[0] if reasons else "transformers has no such head"
                yield name, task_name, family, reason


def render() -> str:
    """Return the whole page: objectives by family, adaptations by task, and the reasons."""
    reason_of = {(adaptation, task, family): reason for adaptation, task, family, reason in supported()}
    families = {task: _built("tasks", task).families for task in registry.names("tasks")}
    rows, methods = [], {}
    for adaptation in registry.names("adaptations"):
        cells = []
        for task, all_families in families.items():
            good = [family for family in all_families if reason_of[adaptation, task, family] is None]
            cells.append("all" if len(good) == len(all_families) else ", ".join(good) or "no")
        rows.append([f"`{adaptation}`", *cells])
        for line in _reasons(adaptation, families, reason_of):
            methods.setdefault(line, []).append(f"`{adaptation}`")
    objectives = {name: registry.resolve("objectives", name).families for name in registry.names("objectives")}
    return "\n".join(
        [
            HEADER,
            "## Objectives by family\n"
            "A `mixture` supports the families of its members; `prefix_lm` on a decoder needs `family: decoder`, and "
            "`causal_lm` on an encoder `family: encoder`.\n",
            _families_table("objective", objectives),
            "\n## Tasks by family\n",
            _families_table("task", families),
            "\n## Adaptations by task\n`all`: all families of the task; else the supported families.\n",
            _table(["adaptation", *(f"`{task}`" for task in families)], rows),
            "\n## Why combinations are not supported\n",
            *(f"- {', '.join(names)} {line}" for line, names in methods.items()),
            "\n## Layouts that a method does not support\n",
            *_unsupported_layouts(),
            "",
        ]
    )


def _reasons(adaptation: str, families: dict[str, tuple[str, ...]], reason_of: dict[Any, str | None]) -> list[str]:
    """Return a line for each reason of an adaptation, with the tasks and families that it rejects."""
    rejected: dict[str, list[str]] = {}
    for task, all_families in families.items():
        by_reason: dict[str, list[str]] = {}
        for family in all_families:
            if (reason := reason_of[adaptation, task, family]) is not None:
                by_reason.setdefault(reason, []).append(family)
        for reason, some in by_reason.items():
            where = f"`{task}`" + ("" if len(some) == len(all_families) else f" on {', '.join(some)}")
            rejected.setdefault(reason, []).append(where)
    return [f"for {', '.join(where)}: {reason}" for reason, where in rejected.items()]


def _unsupported_layouts() -> list[str]:
    """Return a line for each adaptation and reason, with the layouts that it rejects."""
    lines = []
    for name in registry.names("adaptations"):
        rejected: dict[str, list[str]] = {}
        for family in FAMILIES:
            for kind in kinds(family):
                if (reason := _built("adaptations", name).supports_kind(kind or family)) is not None:
                    rejected.setdefault(reason, []).append(kind or family)
        lines += [f"- `{name}`, {', '.join(layouts)}: {reason}" for reason, layouts in rejected.items()]
    return lines


def _families_table(title: str, families: dict[str, tuple[str, ...]]) -> str:
    """Return a table of the entries that support each family."""
    rows = [[f"`{name}`", *("yes" if family in own else "no" for family in FAMILIES)] for name, own in families.items()]
    return _table([title, *FAMILIES], rows)


def _built(group: str, name: str) -> Any:
    """Return an entry with default settings."""
    config = registry.resolve(group, name).Config.model_validate({registry.SELECTOR[group]: name})
    return registry.build(group, config)


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
