"""How often words and pairs of words occur in the corpus that a checkpoint was pre-trained on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.core.errors import HeadstartError
from headstart.corpus.read import mixture
from headstart.corpus.read.mixture import Corpus
from headstart.corpus.read.readers import Receipt
from headstart.stages.pretrain.reopen import recorded_recipe

_MOST_CHARACTERS = 300_000_000
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class PhraseCounts:
    """Occurrences in a corpus; letters count as equal in upper and lower case."""

    occurrences: dict[str, int]
    """By phrase: how often its words follow each other."""
    together: dict[tuple[str, str], int]
    """By pair of phrases: the documents that contain both."""
    documents: int
    is_complete: bool
    """Whether the whole corpus was read."""


class CorpusCounter:
    """Counts the phrases of pairs in the corpora of checkpoints; models of the same corpus share one count."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Keep the pairs, such as subjects and answers."""
        self.pairs = pairs
        self._counted: dict[str, PhraseCounts | str] = {}

    def of(self, folder: Path) -> PhraseCounts | str:
        """Count in the corpus that a checkpoint was pre-trained on, or return why that is not possible.

        At most 300 million characters are read.
        """
        try:
            recipe = recorded_recipe(folder)
            if recipe is None:
                return "it is not recorded which corpus this model was pre-trained on"
            key = recipe.model_dump_json(include={"corpus"})
            if key not in self._counted:
                self._counted[key] = count_phrases(_texts(recipe.corpus), self.pairs)
        except (HeadstartError, OSError) as error:
            return f"the corpus that it was pre-trained on cannot be read: {str(error).rstrip('.')}"
        return self._counted[key]


def count_phrases(texts: Iterable[str], pairs: Sequence[tuple[str, str]]) -> PhraseCounts:
    """Count the phrases of all pairs, and the pairs, in documents."""
    phrases = {phrase: tuple(_words(phrase)) for pair in pairs for phrase in pair}
    by_first: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for phrase, parts in phrases.items():
        if parts:
            by_first.setdefault(parts[0], []).append((parts, phrase))
    partners: dict[str, set[str]] = {}
    for first, second in pairs:
        partners.setdefault(first, set()).add(second)
    occurrences: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    documents, left = 0, _MOST_CHARACTERS
    for text in texts:
        if left <= 0:
            break
        left -= len(text)
        documents += 1
        found: Counter[str] = Counter()
        words = _words(text)
        for i in [i for i, word in enumerate(words) if word in by_first]:
            found.update(phrase for rest, phrase in by_first[words[i]] if tuple(words[i : i + len(rest)]) == rest)
        occurrences.update(found)
        together.update((first, second) for first in found for second in partners.get(first, ()) if second in found)
    counts = {phrase: occurrences[phrase] for phrase in phrases}
    return PhraseCounts(counts, {pair: together[pair] for pair in pairs}, documents, left > 0)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _texts(corpus: Corpus) -> Iterator[str]:
    for part in mixture.parts_of(corpus).values():
        for document in mixture.documents(part, Receipt()):
            yield document.text
