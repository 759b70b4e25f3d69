"""Overlapping windows over pairs of texts with a long second text, with the character offsets of each token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headstart.core.data import InputSpec, Ints
from headstart.core.errors import ArtifactError

_WHITESPACE = re.compile(r"\s+")
_PAIRS_PER_CALL = 256
"""Pairs tokenized at a time: the tokenizer's lists of offsets take many times the memory of arrays."""


@dataclass(frozen=True)
class Window:
    """The tokens of the first text and of the part of the second text that fits."""

    pair: int
    """The index of the pair."""
    input_ids: list[int]
    token_type_ids: list[int] | None
    offsets: Ints = field(repr=False)
    """Shape (tokens, 2): start and end character of each token in the second text, without leading spaces; else -1."""
    start: int
    """The first character from which on the window contains all tokens."""
    end: int
    """The character up to which the window contains all tokens."""

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token of a character span; None if the window does not contain all of it."""
        tokens = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end) & (self.offsets[:, 0] >= 0))
        if start < self.start or end > self.end or not len(tokens):
            return None
        return int(tokens[0]), int(tokens[-1])


def windows(
    first: Sequence[str], second: Sequence[str], spec: InputSpec, stride: int, max_first: int
) -> Iterator[Window]:
    """Yield the windows of all pairs in order.

    Neighboring windows share `stride` tokens, but at most half of the tokens that the second text has in a window. The
    first text is truncated to `max_first` tokens, but to at most half of the window.
    """
    tokenizer = spec.tokenizer
    if not tokenizer.is_fast:
        raise ArtifactError("the tokenizer gives no character offsets", do="Use a fast tokenizer")
    room = spec.max_length - tokenizer.num_special_tokens_to_add(pair=True)
    max_first = min(max_first, room // 2)
    overlap = min(stride, (room - max_first) // 2)
    for start in range(0, len(first), _PAIRS_PER_CALL):
        texts = second[start : start + _PAIRS_PER_CALL]
        encoded = tokenizer(
            _truncated(first[start : start + _PAIRS_PER_CALL], spec, max_first), list(texts), truncation="only_second",
            max_length=spec.max_length, stride=overlap, return_overflowing_tokens=True, return_offsets_mapping=True,
            return_attention_mask=False,
        )  # fmt: skip
        owners = encoded["overflow_to_sample_mapping"]
        all_offsets = [np.asarray(offsets, dtype=np.int64).reshape(-1, 2) for offsets in encoded["offset_mapping"]]
        word_starts = [_skip_whitespace(text) for text in texts]
        for i, (owner, offsets) in enumerate(zip(owners, all_offsets, strict=True)):
            # Some tokenizers count the space before a word as part of the word, but not in every window.
            offsets[:, 0] = np.minimum(word_starts[owner][np.minimum(offsets[:, 0], len(texts[owner]))], offsets[:, 1])
            offsets[[sequence != 1 for sequence in encoded.sequence_ids(i)]] = -1
        for i, (owner, offsets) in enumerate(zip(owners, all_offsets, strict=True)):
            before = all_offsets[i - 1] if i and owners[i - 1] == owner else None
            after = all_offsets[i + 1] if i + 1 < len(owners) and owners[i + 1] == owner else None
            first_character, end = _covered(offsets, before, after, overlap)
            yield Window(
                pair=start + owner,
                input_ids=encoded["input_ids"][i],
                token_type_ids=encoded["token_type_ids"][i] if "token_type_ids" in encoded else None,
                offsets=offsets,
                start=first_character,
                end=len(texts[owner]) if end is None else end,
            )


def _skip_whitespace(text: str) -> Ints:
    """Return for each position of a text, and its end, the next position that is not whitespace."""
    positions = np.arange(len(text) + 1)
    for spaces in _WHITESPACE.finditer(text):
        positions[spaces.start() : spaces.end()] = spaces.end()
    return positions


def _covered(offsets: Ints, before: Ints | None, after: Ints | None, overlap: int) -> tuple[int, int | None]:
    """Return the first character and the end of the text that a window covers; an end of None is the text's end.

    Byte-level tokenizers encode one character as several tokens, and a window may start or end between them.
    """
    start, end = 0, None
    own = offsets[offsets[:, 0] >= 0]
    if before is not None:
        last_missing = before[before[:, 0] >= 0][-overlap - 1]
        start = int(own[0, 0] if last_missing[1] <= own[0, 0] else own[0, 1])
    if after is not None:
        first_missing = after[after[:, 0] >= 0][overlap]
        end = int(own[-1, 1] if first_missing[0] >= own[-1, 1] else own[-1, 0])
    return start, end


def _truncated(texts: Sequence[str], spec: InputSpec, max_tokens: int) -> list[str]:
    """Return the texts without leading whitespace, truncated to a number of tokens."""
    stripped = [text.lstrip() for text in texts]
    encoded = spec.tokenizer(stripped, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [
        text if len(offsets) <= max_tokens else text[: offsets[max_tokens - 1][1]]
        for text, offsets in zip(stripped, encoded, strict=True)
    ]
