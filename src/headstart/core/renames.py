"""Keys of recipes that have been renamed.

A recipe with an old key is refused, and the message gives the new name. Artifacts keep the recipe that made them, so
`upgrade` translates theirs on reading, and `original` restores the names under which their addresses were hashed:
a run or a study's cell that was computed before a rename is still found.
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
    """Return the new name of a key or an entry, if that is one of the known ones."""
    new = _LAST.get(word)
    return new if new is not None and new in set(known) else None


def upgrade(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved recipe under the keys of today."""
    return _renamed(recipe, KEYS, ENTRIES)


def original(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe under the keys by which it was first hashed."""
    return _renamed(recipe, {new: old for old, new in KEYS.items()}, {new: old for old, new in ENTRIES.items()})


def _renamed(recipe: Mapping[str, Any], keys: Mapping[str, str], entries: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(dict(recipe))
    for before, after in keys.items():
        *path, old = before.split(".")
        new = after.rpartition(".")[2]
        for section in _sections(made, path):
            if old in section and new not in section:
                items = [(new if key == old else key, value) for key, value in section.items()]
                section.clear()
                section.update(items)
    for section_name, key in _NAMED:
        for section in _sections(made, [section_name]):
            if section.get(key) in entries:
                section[key] = entries[section[key]]
    return made


def _sections(recipe: dict[str, Any], path: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the sections that a path leads to: one, or each of a list."""
    found: Any = recipe
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    yield from (section for section in (found if isinstance(found, list) else [found]) if isinstance(section, dict))
