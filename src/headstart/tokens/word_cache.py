"""A tokenizer with a cache of words: most words of a text have occurred before and have the same ids.

tokenizers has no such cache: BPE alone remembers words, and only after it has normalized and split the text again.
Texts are split before single spaces between words, and only for tokenizers in which no token, normalizer or pattern
spans such a space. For all other tokenizers a text counts as one word.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Ids: TypeAlias = "array[int]"
"""Four bytes per id. A list would give the garbage collector a quarter of a million more objects to visit."""

_MAX_WORDS = 1 << 17
"""Words in the cache, about 30 MB. When it is full, the words added last, which are mostly rare, are dropped."""
_JOINED_WORDS = 128
"""Uncached words that are encoded as one text. Encoding them one by one costs twice as much."""

_SPLITTERS = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"})
_SPLITTERS_WITHIN_WORDS = frozenset({"Digits", "Punctuation"})
_NORMALIZERS_BY_CHARACTER = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Nmt", "Precompiled"}
)
_RUNS_OF_SPACES = ({"Regex": r"\s+"}, {"Regex": r" {2,}"})


class EncodedBatch(NamedTuple):
    """The ids of several texts in one array, and the number of ids of each text."""

    ids: np.ndarray[Any, np.dtype[np.uint32]]
    lengths: list[int]


class WordCache:
    """Encodes texts with a tokenizer of tokenizers and looks up words that it has encoded before."""

    def __init__(self, backend: Any, max_words: int = _MAX_WORDS) -> None:
        """Start with an empty cache."""
        self._backend, self._max_words = backend, max_words
        self._splits = splits_before_spaces(json.loads(backend.to_str()))
        self._first_words, self._later_words = _IdTable(), _IdTable()

    def encode(self, texts: Iterable[str]) -> EncodedBatch:
        """Return the ids that the tokenizer gives each text, without special tokens."""
        if len(self._first_words) + len(self._later_words) > self._max_words:
            self._first_words.drop_newer_half()
            self._later_words.drop_newer_half()
        ids_by_text: list[list[Ids]] = []
        unsplit: list[_Uncached] = []
        for text in texts:
            body = text.lstrip()
            # Every white-space character except the plain space is unprintable.
            if self._splits and body.isprintable() and "  " not in body and body[-1:] != " ":
                first, *later = body.split(" ")
                leading_space = text[: len(text) - len(body)]
                first_ids = self._first_words[leading_space + first]
                ids_by_text.append([first_ids, *map(self._later_words.__getitem__, later)])
            else:
                unsplit.append(_Uncached(text, array("I")))
                ids_by_text.append([unsplit[-1].ids])
        self._fill(unsplit + self._first_words.pop_uncached())
        self._fill_joined(self._later_words.pop_uncached())
        buffers = [b"".join(ids) for ids in ids_by_text]
        size = array("I").itemsize
        lengths = [len(buffer) // size for buffer in buffers]
        return EncodedBatch(np.frombuffer(b"".join(buffers), dtype=np.uint32), lengths)

    def _fill(self, uncached: Sequence[_Uncached]) -> None:
        texts = [entry.text for entry in uncached]
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        for entry, encoding in zip(uncached, encodings, strict=True):
            entry.ids.extend(encoding.ids)

    def _fill_joined(self, uncached: Sequence[_Uncached]) -> None:
        groups = [uncached[start : start + _JOINED_WORDS] for start in range(0, len(uncached), _JOINED_WORDS)]
        joined = ["".join(f" {entry.text}" for entry in group) for group in groups]
        for group, encoding in zip(groups, self._backend.encode_batch(joined, add_special_tokens=False), strict=True):
            _distribute(encoding, group)


class _Uncached(NamedTuple):
    """A stretch of text, and the array that receives its ids."""

    text: str
    ids: Ids


def _distribute(encoding: Any, words: Sequence[_Uncached]) -> None:
    """Give each word its tokens of a joined encoding: those that end within it or on the space before it."""
    ends = np.cumsum([1 + len(word.text) for word in words])
    last_characters = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1] - 1
    counts = np.bincount(np.searchsorted(ends, last_characters, side="right"), minlength=len(words)).tolist()
    ids = array("I", encoding.ids)
    for word, stop, count in zip(words, accumulate(counts), counts, strict=True):
        word.ids.extend(ids[stop - count : stop])


class _IdTable(dict[str, Ids]):
    """Ids by word. A missing word gets an empty array, which is filled later."""

    def __init__(self) -> None:
        self._uncached: list[_Uncached] = []

    def __missing__(self, word: str) -> Ids:
        ids = self[word] = array("I")
        self._uncached.append(_Uncached(word, ids))
        return ids

    def drop_newer_half(self) -> None:
        """Keep the words that were added first, which include the frequent ones."""
        for word in list(self)[len(self) // 2 :]:
            del self[word]

    def pop_uncached(self) -> list[_Uncached]:
        """Return the words that have no ids yet, and forget the list."""
        uncached, self._uncached = self._uncached, []
        return uncached


def splits_before_spaces(tokenizer: dict[str, Any]) -> bool:
    """Return True if a tokenizer, given as its JSON, encodes a word alone to the ids it has within a text."""
    splitters, normalizers = _steps(tokenizer, "pre_tokenizer"), _steps(tokenizer, "normalizer")
    return (
        any(_splits(step) for step in splitters)
        and all(_splits(step) or step["type"] in _SPLITTERS_WITHIN_WORDS for step in splitters)
        and all(_keeps_words(step, splitters) for step in normalizers)
        and tokenizer["model"].get("dropout") is None
        and not any(_spans_spaces(token) for token in tokenizer["added_tokens"])
    )


def _steps(tokenizer: dict[str, Any], component: str) -> Sequence[dict[str, Any]]:
    step = tokenizer[component]
    if step is None:
        return []
    steps: Sequence[dict[str, Any]] = step.get("pretokenizers") or step.get("normalizers") or [step]
    return steps


def _splits(step: dict[str, Any]) -> bool:
    return step["type"] in _SPLITTERS and step.get("use_regex", True) and step.get("split", True)


def _keeps_words(step: dict[str, Any], splitters: Sequence[dict[str, Any]]) -> bool:
    if step["type"] == "Strip":
        # It strips the space before a later word. That matters if spaces become tokens, unless every word gets one.
        return all(s["type"] != "ByteLevel" and s.get("prepend_scheme", "always") == "always" for s in splitters)
    if step["type"] == "Replace":
        return step["pattern"] in _RUNS_OF_SPACES and step["content"] == " "
    return step["type"] in _NORMALIZERS_BY_CHARACTER


def _spans_spaces(token: dict[str, Any]) -> bool:
    """Return True if an added token that is matched in texts contains a space or strips those around it."""
    return not token["special"] and (token["lstrip"] or token["rstrip"] or " " in token["content"])
