"""Pairs of texts whose second one may be long: read in windows that overlap, with each token's place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headstart.core.data import InputSpec, Ints
from headstart.core.errors import ArtifactError

_BLANKS = re.compile(r"\s+")
_TOGETHER = 256
"""Pairs tokenised at a time: the tokenizer's own lists of offsets take many times the memory of arrays."""


@dataclass(frozen=True)
class Window:
    """The first text and as much of the second as fits, in tokens."""

    pair: int
    """The number of the pair."""
    input_ids: list[int]
    token_type_ids: list[int] | None
    offsets: Ints = field(repr=False)
    """Shape (tokens, 2): from and up to which character of the second text, after blanks, a token stands; else -1."""
    begins: int
    """The first character that the window holds all tokens of, and of those that follow."""
    ends: int
    """The character up to which it does."""

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token that hold some characters; None where the window lacks a part."""
        held = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end) & (self.offsets[:, 0] >= 0))
        if start < self.begins or end > self.ends or not len(held):
            return None
        return int(held[0]), int(held[-1])


def windows(
    first: Sequence[str], second: Sequence[str], reading: InputSpec, stride: int, most_of_first: int
) -> Iterator[Window]:
    """Yield the windows of all pairs in order; neighbours share `stride` tokens, or half of the room if that is less.

    `most_of_first` tokens of a first text are read, or as many as leave half of the room to the second.
    """
    tokenizer = reading.tokenizer
    if not tokenizer.is_fast:
        raise ArtifactError("the tokenizer cannot tell where its tokens stand in a text", do="Use a fast tokenizer")
    room = reading.max_length - tokenizer.num_special_tokens_to_add(pair=True)
    most = min(most_of_first, room // 2)
    shared = min(stride, (room - most) // 2)
    for start in range(0, len(first), _TOGETHER):
        texts = second[start : start + _TOGETHER]
        encoded = tokenizer(
            _beginnings(first[start : start + _TOGETHER], reading, most), list(texts), truncation="only_second",
            max_length=reading.max_length, stride=shared, return_overflowing_tokens=True, return_offsets_mapping=True,
            return_attention_mask=False,
        )  # fmt: skip
        owners = encoded["overflow_to_sample_mapping"]
        places = [np.asarray(offsets, dtype=np.int64).reshape(-1, 2) for offsets in encoded["offset_mapping"]]
        beyond = [_beyond_blanks(text) for text in texts]
        for number, (owner, offsets) in enumerate(zip(owners, places, strict=True)):
            # Some tokenizers count the blank before a word as the word's, and the same one not in every window.
            offsets[:, 0] = np.minimum(beyond[owner][np.minimum(offsets[:, 0], len(texts[owner]))], offsets[:, 1])
            offsets[[of != 1 for of in encoded.sequence_ids(number)]] = -1
        for number, (owner, offsets) in enumerate(zip(owners, places, strict=True)):
            before = places[number - 1] if number and owners[number - 1] == owner else None
            after = places[number + 1] if number + 1 < len(owners) and owners[number + 1] == owner else None
            begins, ends = _held(offsets, before, after, shared)
            yield Window(
                pair=start + owner,
                input_ids=encoded["input_ids"][number],
                token_type_ids=encoded["token_type_ids"][number] if "token_type_ids" in encoded else None,
                offsets=offsets,
                begins=begins,
                ends=len(texts[owner]) if ends is None else ends,
            )


def _beyond_blanks(text: str) -> Ints:
    """Return for each place in a text, its end too, the next one at which no blank stands."""
    places = np.arange(len(text) + 1)
    for blanks in _BLANKS.finditer(text):
        places[blanks.start() : blanks.end()] = blanks.end()
    return places


def _held(offsets: Ints, before: Ints | None, after: Ints | None, shared: int) -> tuple[int, int | None]:
    """Return from and up to which character a window holds all tokens; None is the text's end.

    Byte-level tokenizers write one character by several tokens, and a window may begin or end between them.
    """
    begins, ends = 0, None
    here = offsets[offsets[:, 0] >= 0]
    if before is not None:
        last_lacking = before[before[:, 0] >= 0][-shared - 1]
        begins = int(here[0, 0] if last_lacking[1] <= here[0, 0] else here[0, 1])
    if after is not None:
        first_lacking = after[after[:, 0] >= 0][shared]
        ends = int(here[-1, 1] if first_lacking[0] >= here[-1, 1] else here[-1, 0])
    return begins, ends


def _beginnings(texts: Sequence[str], reading: InputSpec, most: int) -> list[str]:
    """Return the texts without blanks before them, cut after so many tokens."""
    stripped = [text.lstrip() for text in texts]
    encoded = reading.tokenizer(stripped, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [
        text if len(offsets) <= most else text[: offsets[most - 1][1]]
        for text, offsets in zip(stripped, encoded, strict=True)
    ]
