"""Keys of recipes that have been renamed.

A recipe with an old key is refused with an error that gives the new name. Artifacts contain the recipe that produced
them: `upgrade` translates it on reading, and `original` restores the keys from which their hashes were computed, so
that a run or a study's cell from before a rename is still found.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
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
}
"""Old key → new key, by their path in a recipe or a study."""
ENTRIES = {"as_is": "zero_shot"}
"""Old name → new name of an entry of the registry."""
_LAST = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in KEYS.items()} | ENTRIES
_NAMED = (("adaptation", "name"),)
"""Where a recipe names an entry that was renamed."""


def new_name(word: str, known: Iterable[str]) -> str | None:
    """Return the new name of a key or an entry, or None if it is not among the known names."""
    new = _LAST.get(word)
    return new if new is not None and new in set(known) else None


def upgrade(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved recipe with the current keys."""
    return _renamed(recipe, KEYS, ENTRIES)


def original(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe with the keys from which its hash is computed."""
    return _renamed(recipe, {new: old for old, new in KEYS.items()}, {new: old for old, new in ENTRIES.items()})


def _renamed(recipe: Mapping[str, Any], keys: Mapping[str, str], entries: Mapping[str, str]) -> dict[str, Any]:
    renamed: dict[str, Any] = copy.deepcopy(dict(recipe))
    for old_key, new_key in keys.items():
        *path, old = old_key.split(".")
        new = new_key.rpartition(".")[2]
        for section in _sections(renamed, path):
            if old in section and new not in section:
                items = [(new if key == old else key, value) for key, value in section.items()]
                section.clear()
                section.update(items)
    for section_name, key in _NAMED:
        for section in _sections(renamed, [section_name]):
            if section.get(key) in entries:
                section[key] = entries[section[key]]
    return renamed


def _sections(recipe: dict[str, Any], path: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the sections at a path: one, or each item of a list."""
    node: Any = recipe
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    yield from (section for section in (node if isinstance(node, list) else [node]) if isinstance(section, dict))
