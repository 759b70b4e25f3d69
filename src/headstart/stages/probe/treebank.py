"""Sentences with dependency trees, and sentences without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headstart.core.errors import DataError
from headstart.stages.probe.probe import read_table

_COLUMNS = ("tokens", "heads", "relations")
_ROOT = "root"


@dataclass(frozen=True)
class Tree:
    """The words of a sentence; for each word the number of its head (1 is the first word, 0 the root) and its relation.

    Heads and relations are empty for a sentence without a tree.
    """

    words: list[str]
    heads: list[int]
    relations: list[str]

    def edges(self) -> Iterator[tuple[str, int, int]]:
        """Yield relation, dependent and head of each edge, as indices of words; the root has none."""
        for dependent, (head, relation) in enumerate(zip(self.heads, self.relations, strict=True)):
            if head > 0 and relation != _ROOT:
                yield relation, dependent, head - 1


def read_trees(path: Path) -> list[Tree]:
    """Return the sentences of a treebank of two words or more."""
    trees = []
    for number, row in enumerate(read_table(path, _COLUMNS), start=1):
        words, heads, relations = (row[name] for name in _COLUMNS)
        if not all(isinstance(part, list) for part in (words, heads, relations)):
            raise DataError(f"{path}, row {number}: tokens, heads and relations are not lists", do="Convert the file")
        if not len(words) == len(heads) == len(relations) or not all(0 <= head <= len(words) for head in heads):
            raise DataError(
                f"{path}, row {number}: {len(words)} tokens, {len(heads)} heads and {len(relations)} relations",
                allowed="Each token has a head, from 0 (the root) to the number of tokens, and a relation",
                do="Repair or remove the row",
            )
        if len(words) > 1:
            trees.append(Tree(words, heads, relations))
    if not trees:
        raise DataError(f"{path} has no sentence of two words or more", do="Pass another file")
    return trees


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
