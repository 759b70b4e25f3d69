"""Sentences with dependency trees, with tags, and without either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.core.errors import DataError
from headstart.stages.probe.probe import read_table

_COLUMNS = ("tokens", "heads", "relations")
_TAGS = "tags"
_ROOT = "root"


@dataclass(frozen=True)
class Tree:
    """The words of a sentence; for each word the number of its head (1 is the first word, 0 the root) and its relation.

    Heads and relations are empty for a sentence without a tree, and tags for one whose words have no tags.
    """

    words: list[str]
    heads: list[int]
    relations: list[str]
    tags: list[str] = field(default_factory=list)

    def edges(self) -> Iterator[tuple[str, int, int]]:
        """Yield relation, dependent and head of each edge, as indices of words; the root has none."""
        for dependent, (head, relation) in enumerate(zip(self.heads, self.relations, strict=True)):
            if head > 0 and relation != _ROOT:
                yield relation, dependent, head - 1


def read_trees(path: Path) -> list[Tree]:
    """Return the sentences of a treebank of two words or more."""
    trees = []
    for number, row in enumerate(read_table(path, _COLUMNS, (_TAGS,)), start=1):
        words, heads, relations = (row[name] for name in _COLUMNS)
        if not all(isinstance(part, list) for part in (words, heads, relations)):
            raise DataError(f"{path}, row {number}: tokens, heads and relations are not lists", do="Convert the file")
        _require_texts(path, number, "token", words)
        _require_heads(path, number, heads)
        _require_texts(path, number, "relation", relations)
        if not len(words) == len(heads) == len(relations) or not all(0 <= head <= len(words) for head in heads):
            raise DataError(
                f"{path}, row {number}: {len(words)} tokens, {len(heads)} heads and {len(relations)} relations",
                allowed="Each token has a head, from 0 (the root) to the number of tokens, and a relation",
                do="Repair or remove the row",
            )
        if len(words) > 1:
            trees.append(Tree(words, heads, relations, _tags(path, number, row)))
    if not trees:
        raise DataError(f"{path} has no sentence of two words or more", do="Pass another file")
    return trees


def read_tagged(path: Path) -> list[Tree]:
    """Return the sentences of a table with the columns `tokens` and `tags`, without trees."""
    trees = []
    for number, row in enumerate(read_table(path, (_COLUMNS[0], _TAGS)), start=1):
        words = row[_COLUMNS[0]]
        if not isinstance(words, list):
            raise DataError(f"{path}, row {number}: tokens are not a list", do="Convert the file")
        _require_texts(path, number, "token", words)
        trees.append(Tree(words, [], [], _tags(path, number, row)))
    return trees


def _tags(path: Path, number: int, row: dict[str, Any]) -> list[str]:
    """Return the tags of a sentence as texts, or none if the table has no such column; a tag may be a number."""
    tags = row.get(_TAGS)
    if tags is not None and (not isinstance(tags, list) or len(tags) != len(row[_COLUMNS[0]])):
        raise DataError(
            f"{path}, row {number}: the tags do not belong to the {len(row[_COLUMNS[0]])} tokens",
            allowed="Each token has a tag",
            do="Repair or remove the row",
        )
    named = [str(tag) if _is_integer(tag) else tag for tag in tags or ()]
    _require_texts(path, number, "tag", named)
    return named


def _require_texts(path: Path, number: int, name: str, values: list[Any]) -> None:
    for position, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise DataError(
                f"{path}, row {number}: {name} {position} is {_shown(value)}, not a text",
                do="Repair or remove the row",
            )


def _require_heads(path: Path, number: int, heads: list[Any]) -> None:
    for position, head in enumerate(heads, start=1):
        if not _is_integer(head):
            raise DataError(
                f"{path}, row {number}: head {position} is {_shown(head)}, not an integer",
                allowed="A head is the number of a token, such as 2, or 0 for the root",
                do="Convert the heads to integers" if head is not None else "Repair or remove the row",
            )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def read_lines(path: Path) -> list[list[str]]:
    """Return the sentences of a text file as words, one sentence per line; lines of one word are left out."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error})", do="Pass a UTF-8 text file or a table") from error
    sentences = [words for words in lines if len(words) > 1]
    if not sentences:
        raise DataError(f"{path} has no line of two words or more", do="Write one sentence per line")
    return sentences
