"""Keys of recipes that have been renamed.

A recipe with an old key is refused with an error that gives the new name. Artifacts contain the recipe that produced
them: `upgrade` translates it on reading, and `original` restores the keys from which their hashes were computed, so
that a run or a study's cell from before a rename is still found.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

KEYS = {
    "company": "compare_with",
    "data.labels": "data.train_rows",
    "tokenizer.vocab": "tokenizer.vocab_size",
    "training.row_length": "training.seq_length",
    "training.evaluations": "training.eval_count",
    "training.patience": "training.early_stopping_patience",
    "training.compile": "training.torch_compile",
    "training.save_minutes": "training.save_interval_minutes",
    "claims.says": "claims.statement",
    "tuned": "overrides",
    "without": "exclude",
    "sources.licence": "sources.license",
    "objective.initialise": "objective.initialize",
    "objective.objectives.initialise": "objective.objectives.initialize",
    "task.normalise": "task.normalize",
    "tasks.*.task.normalise": "tasks.*.task.normalize",
    "adaptation.normalise": "adaptation.normalize",
    "compare_with.normalise": "compare_with.normalize",
    "overrides.adaptation.normalise": "overrides.adaptation.normalize",
}
"""Old key → new key, by their path in a recipe or a study; the sections on the way have their current names.

A path continues in each item of a list; `*` stands for every key of a section.
"""
_OWNERS = {"initialise": ("distillation",), "normalise": ("prompt_choice", "features")}
"""Entries of the registry with a renamed key; an entry of a plugin may have a key of the old or the new name."""
ENTRIES = {"as_is": "zero_shot", "neighbours": "neighbors"}
"""Old name → new name of an entry of the registry."""
_LAST = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in KEYS.items()} | ENTRIES
_NAMED = (("adaptation", "name"), ("", "probe"), ("", "probes"))
"""Where a recipe names an entry that was renamed: section and key."""


def new_name(word: str, known: Iterable[str]) -> str | None:
    """Return the new name of a key or an entry, or None if it is not among the known names."""
    new = _LAST.get(word)
    return new if new is not None and new in set(known) else None


def upgrade(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved recipe with the current keys."""
    return _renamed(recipe, KEYS, ENTRIES)


def original(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe with the keys from which its hash is computed."""
    # In reverse, so that a section still has its current name when its keys are renamed.
    keys = {new: old for old, new in reversed(KEYS.items())}
    return _renamed(recipe, keys, {new: old for old, new in ENTRIES.items()})


def _renamed(recipe: Mapping[str, Any], keys: Mapping[str, str], entries: Mapping[str, str]) -> dict[str, Any]:
    renamed: dict[str, Any] = copy.deepcopy(dict(recipe))
    for old_key, new_key in keys.items():
        *path, old = old_key.split(".")
        new = new_key.rpartition(".")[2]
        owners = _OWNERS.get(old) or _OWNERS.get(new)
        for section in _sections(renamed, path):
            if old in section and new not in section and _is_of(section, owners):
                items = [(new if key == old else key, value) for key, value in section.items()]
                section.clear()
                section.update(items)
    for section_name, key in _NAMED:
        for section in _sections(renamed, [section_name] if section_name else []):
            if key in section:
                section[key] = _renamed_entry(section[key], entries)
    return renamed


def _renamed_entry(value: Any, entries: Mapping[str, str]) -> Any:
    """Return the new name of an entry, or of each of a list; any other value as it is."""
    if isinstance(value, list):
        return [_renamed_entry(item, entries) for item in value]
    return entries.get(value, value) if isinstance(value, str) else value


def _is_of(section: Mapping[str, Any], owners: tuple[str, ...] | None) -> bool:
    """Return whether a section names one of some entries, or none, like a part of a section in a study."""
    name = section.get("name", section.get("kind"))
    return owners is None or name is None or name in owners


def _sections(node: Any, path: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the sections at a path; see `KEYS`."""
    if isinstance(node, list):
        for item in node:
            yield from _sections(item, path)
    elif isinstance(node, dict):
        if not path:
            yield node
            return
        for child in [*node.values()] if path[0] == "*" else [node.get(path[0])]:
            yield from _sections(child, path[1:])
