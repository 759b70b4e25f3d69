"""Labels of words that linear probes predict from states: tags, dependency relations, entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.core.errors import DataError
from headstart.stages.probe.probe import read_table, sample
from headstart.stages.probe.treebank import Tree, read_tagged, read_trees

_FEWEST_SENTENCES = 12
_TEST_EVERY = 3


@dataclass(frozen=True)
class LabeledWord:
    """A label, the words whose states predict it, as indices in their sentence, and the first of them in lowercase."""

    sentence: int
    positions: tuple[int, ...]
    label: str
    word: str

    @property
    def is_test(self) -> bool:
        """Whether its sentence is for testing, as every third one is."""
        return self.sentence % _TEST_EVERY == _TEST_EVERY - 1


@dataclass(frozen=True)
class LabelTask:
    """Words with labels of one kind."""

    name: str
    examples: list[LabeledWord]


@dataclass(frozen=True)
class LabeledText:
    """Sentences as words, and the tasks over them."""

    source: str
    sentences: list[list[str]]
    tasks: list[LabelTask]


def read_treebank(path: Path, source: str, limit: int, seed: int) -> LabeledText:
    """Return the tasks `tags` and `relations` over a sample of sentences; a table may have one of the two only."""
    columns = read_table(path, ("tokens",), ("heads",))[0]
    trees = _sample(read_trees(path) if "heads" in columns else read_tagged(path), source, limit, seed)
    tasks = []
    if any(tree.tags for tree in trees):
        tasks.append(LabelTask("tags", _tagged(trees)))
    if any(tree.heads for tree in trees):
        tasks.append(LabelTask("relations", _related(trees)))
    return LabeledText(source, [tree.words for tree in trees], tasks)


def read_entities(path: Path, source: str, limit: int, seed: int) -> LabeledText:
    """Return the task `entities` over a sample of sentences with BIO tags: the kind of entity of each word, or O."""
    trees = _sample(read_tagged(path), source, limit, seed)
    examples = [
        LabeledWord(each.sentence, each.positions, each.label.partition("-")[2] or each.label, each.word)
        for each in _tagged(trees)
    ]
    return LabeledText(source, [tree.words for tree in trees], [LabelTask("entities", examples)])


def _sample(trees: Sequence[Tree], source: str, limit: int, seed: int) -> list[Tree]:
    trees = [tree for tree in trees if tree.words]
    if len(trees) < _FEWEST_SENTENCES:
        raise DataError(
            f"{source} has {len(trees)} sentences",
            allowed=f"Linear probes need {_FEWEST_SENTENCES} or more: two thirds to train, one third to test",
            do="Pass more sentences",
        )
    limit = max(limit, _FEWEST_SENTENCES)
    return [trees[i] for i in sample(len(trees), limit, seed, "layers sentences")]


def _tagged(trees: Sequence[Tree]) -> list[LabeledWord]:
    return [
        LabeledWord(i, (position,), tag, tree.words[position].lower())
        for i, tree in enumerate(trees)
        for position, tag in enumerate(tree.tags)
    ]


def _related(trees: Sequence[Tree]) -> list[LabeledWord]:
    """Return the relation of each word to its head, without its subtype, for the states of both."""
    return [
        LabeledWord(i, (dependent, head), relation.partition(":")[0], tree.words[dependent].lower())
        for i, tree in enumerate(trees)
        for relation, dependent, head in tree.edges()
    ]
