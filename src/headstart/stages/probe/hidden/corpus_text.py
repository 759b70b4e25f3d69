"""The text in which `neighbors` looks for occurrences of words: its sentences, its words, and marked words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.core.errors import DataError
from headstart.stages.probe.probe import read_columns, sample
from headstart.tasks.table_files import SUFFIXES
from headstart.tokens.sentences import sentence_starts

MARK = "**"
"""Stands before and after a word whose nearest occurrences are wanted."""
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
_SENTENCE_WORDS = (4, 60)
_MOST_CHARACTERS = 10_000_000
"""Characters of a text that are read."""


@dataclass(frozen=True)
class MarkedWord:
    """A word in a sentence whose nearest occurrences are wanted."""

    words: tuple[str, ...]
    position: int

    @property
    def word(self) -> str:
        """The word in lowercase."""
        return self.words[self.position].lower()

    def text(self) -> str:
        """Return the sentence with the word marked."""
        return snippet(self.words, self.position, len(self.words))


def snippet(words: Sequence[str], position: int, around: int = 6) -> str:
    """Return a word, marked, with the words around it."""
    start, end = max(0, position - around), position + around + 1
    shown = [*words[start:position], f"{MARK}{words[position]}{MARK}", *words[position + 1 : end]]
    return " ".join([*(["…"] if start else []), *shown, *(["…"] if end < len(words) else [])])


def split_words(sentence: str) -> list[str]:
    """Return the words and punctuation marks of a sentence."""
    return _WORD.findall(sentence)


def marked_word(sentence: str) -> MarkedWord | None:
    """Return the marked word of a sentence, or None if there is not exactly one."""
    parts = sentence.split(MARK)
    if len(parts) != 3 or len(split_words(parts[1])) != 1:
        return None
    before, word, after = map(split_words, parts)
    return MarkedWord((*before, *word, *after), len(before))


def read_sentences(path: Path, has_marks: bool) -> tuple[list[list[str]], list[MarkedWord]]:
    """Return the sentences of a text as words, and the marked words; both of the first ten million characters.

    A text file has one text per line, a table has texts in the column `text`. Sentences of fewer than 4 or more than 60
    words are left out, but not those with a marked word.

    Args:
        path: the text.
        has_marks: refuse a sentence with a mark that does not mark exactly one word.
    """
    if path.suffix.lower() in SUFFIXES:
        texts = [row["text"] for row in read_columns(path, ("text",))]
    else:
        try:
            texts = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path} cannot be read as text ({error})", do="Pass a UTF-8 text file or a table"
            ) from error
    sentences: list[list[str]] = []
    marked: list[MarkedWord] = []
    read = 0
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        read += len(text)
        if read > _MOST_CHARACTERS and sentences:
            break
        starts = sentence_starts(text)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            query = marked_word(text[start:end])
            if query is not None:
                marked.append(query)
                continue
            if has_marks and MARK in text[start:end]:
                raise DataError(
                    f"{path}, text {number}: the sentence {text[start:end].strip()!r} has a {MARK}, but not one marked "
                    "word",
                    allowed=f"One word of a sentence can be marked, as in `a {MARK}play{MARK} in the theatre`",
                    do=f"Mark one word, or remove each {MARK}",
                )
            words = split_words(text[start:end])
            if _SENTENCE_WORDS[0] <= len(words) <= _SENTENCE_WORDS[1]:
                sentences.append(words)
    if not sentences:
        raise DataError(
            f"{path} has no sentence of {_SENTENCE_WORDS[0]} to {_SENTENCE_WORDS[1]} words without a mark",
            allowed="The nearest occurrences of marked words are found in other sentences",
            do="Pass more text",
        )
    return sentences, marked


def frequent_words(sentences: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return the most frequent words of some sentences in lowercase, without punctuation and numbers."""
    counts = Counter(word.lower() for words in sentences for word in words if word[0].isalpha())
    return [word for word, _ in counts.most_common(most)]


def select_sentences(
    sentences: Sequence[Sequence[str]], words: Sequence[str], each: int, others: int, seed: int
) -> tuple[list[int], list[int]]:
    """Return indices of random sentences, and of up to `each` further sentences with each of some words."""
    # The draws have the former name of the probe, so that they stay the same.
    random = sample(len(sentences), others, seed, "neighbours sentences")
    known = set(random)
    more: list[int] = []
    for word in words:
        having = [i for i, sentence in enumerate(sentences) if i not in known and word in map(str.lower, sentence)]
        more += [having[k] for k in sample(len(having), each, seed, f"neighbours sentences {word}")]
        known.update(more)
    return random, more
