"""Words encoded once: nearly all of a text is words that stood in it before, with the same ids.

By hand, since tokenizers remembers no words but BPE's, and those only after it has normalised and split the text anew.
Every split comes before a single space between two words, and only for tokenizers that no token, normalisation or
pattern of which reaches across such a space; for others a text is one word.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Ids: TypeAlias = "array[int]"
"""Four bytes each; a list would be one more object for the garbage collector to visit, a quarter of a million times."""

_MOST_WORDS = 1 << 17
"""Words remembered: about 30 MB. When there are more, those met last are forgotten, mostly rare ones."""
_LOT = 128
"""Unknown words encoded as one text: by itself, each costs twice as much."""

_SPLITTERS = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"})
_SPLITTERS_WITHIN_WORDS = frozenset({"Digits", "Punctuation"})
_NORMALIZERS_BY_CHARACTER = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Nmt", "Precompiled"}
)
_RUNS_OF_SPACES = ({"Regex": r"\s+"}, {"Regex": r" {2,}"})


class Encoded(NamedTuple):
    """The ids of several texts, one after the other, and how many are each text's."""

    ids: np.ndarray[Any, np.dtype[np.uint32]]
    lengths: list[int]


class Words:
    """The ids of texts by a tokenizer of tokenizers, whose words are encoded when they are met for the first time."""

    def __init__(self, backend: Any, most_words: int = _MOST_WORDS) -> None:
        """Remember nothing yet."""
        self._backend, self._most = backend, most_words
        self._splits = splits_before_spaces(json.loads(backend.to_str()))
        self._first, self._later = _Memory(), _Memory()

    def encode(self, texts: Iterable[str]) -> Encoded:
        """Return what the tokenizer gives each text, without special tokens."""
        if len(self._first) + len(self._later) > self._most:
            self._first.forget_the_newer_half()
            self._later.forget_the_newer_half()
        found: list[list[Ids]] = []
        whole: list[_Unknown] = []
        for text in texts:
            body = text.lstrip()
            # Any white space but a plain space is unprintable.
            if self._splits and body.isprintable() and "  " not in body and body[-1:] != " ":
                first, *later = body.split(" ")
                opening = self._first[text[: len(text) - len(body)] + first]
                found.append([opening, *map(self._later.__getitem__, later)])
            else:
                whole.append(_Unknown(text, array("I")))
                found.append([whole[-1].ids])
        self._fill(whole + self._first.taken())
        self._fill_joined(self._later.taken())
        parts = [b"".join(ids) for ids in found]
        size = array("I").itemsize
        return Encoded(np.frombuffer(b"".join(parts), dtype=np.uint32), [len(part) // size for part in parts])

    def _fill(self, unknown: Sequence[_Unknown]) -> None:
        texts = [one.text for one in unknown]
        for one, encoding in zip(
            unknown, self._backend.encode_batch_fast(texts, add_special_tokens=False), strict=True
        ):
            one.ids.extend(encoding.ids)

    def _fill_joined(self, unknown: Sequence[_Unknown]) -> None:
        lots = [unknown[at : at + _LOT] for at in range(0, len(unknown), _LOT)]
        joined = ["".join(f" {one.text}" for one in lot) for lot in lots]
        for lot, encoding in zip(lots, self._backend.encode_batch(joined, add_special_tokens=False), strict=True):
            _share(encoding, lot)


class _Unknown(NamedTuple):
    """A stretch of text, and the array that its ids are to fill."""

    text: str
    ids: Ids


def _share(encoding: Any, lot: Sequence[_Unknown]) -> None:
    """Give each word its part of the ids of all: tokens that end within it or on the space before it."""
    ends = np.cumsum([1 + len(one.text) for one in lot])
    last_characters = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1] - 1
    counts = np.bincount(np.searchsorted(ends, last_characters, side="right"), minlength=len(lot)).tolist()
    ids = array("I", encoding.ids)
    for one, stop, count in zip(lot, accumulate(counts), counts, strict=True):
        one.ids.extend(ids[stop - count : stop])


class _Memory(dict[str, Ids]):
    """Ids by word; one that is not there gets an empty array and waits."""

    def __init__(self) -> None:
        self._waiting: list[_Unknown] = []

    def __missing__(self, word: str) -> Ids:
        ids = self[word] = array("I")
        self._waiting.append(_Unknown(word, ids))
        return ids

    def forget_the_newer_half(self) -> None:
        """Keep what was met first, which the frequent words are among."""
        for word in list(self)[len(self) // 2 :]:
            del self[word]

    def taken(self) -> list[_Unknown]:
        """Return what waits, once."""
        waiting, self._waiting = self._waiting, []
        return waiting


def splits_before_spaces(tokenizer: dict[str, Any]) -> bool:
    """Say whether a tokenizer, as its JSON has it, gives the words of a text by themselves the ids they have in it."""
    splitters, normalizers = _steps(tokenizer, "pre_tokenizer"), _steps(tokenizer, "normalizer")
    return (
        any(_splits(step) for step in splitters)
        and all(_splits(step) or step["type"] in _SPLITTERS_WITHIN_WORDS for step in splitters)
        and all(_keeps_words(step, splitters) for step in normalizers)
        and tokenizer["model"].get("dropout") is None
        and not any(_reaches_across(token) for token in tokenizer["added_tokens"])
    )


def _steps(tokenizer: dict[str, Any], part: str) -> Sequence[dict[str, Any]]:
    found = tokenizer[part]
    if found is None:
        return []
    inner: Sequence[dict[str, Any]] = found.get("pretokenizers") or found.get("normalizers") or [found]
    return inner


def _splits(step: dict[str, Any]) -> bool:
    return step["type"] in _SPLITTERS and step.get("use_regex", True) and step.get("split", True)


def _keeps_words(step: dict[str, Any], splitters: Sequence[dict[str, Any]]) -> bool:
    if step["type"] == "Strip":
        # A later word loses its space, which matters where spaces become tokens, unless one is put before every word.
        return all(s["type"] != "ByteLevel" and s.get("prepend_scheme", "always") == "always" for s in splitters)
    if step["type"] == "Replace":
        return step["pattern"] in _RUNS_OF_SPACES and step["content"] == " "
    return step["type"] in _NORMALIZERS_BY_CHARACTER


def _reaches_across(token: dict[str, Any]) -> bool:
    """Say whether an added token that is found in texts holds a space or takes those around it."""
    return not token["special"] and (token["lstrip"] or token["rstrip"] or " " in token["content"])
