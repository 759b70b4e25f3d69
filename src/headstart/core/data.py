"""The plain objects that flow: documents, rows of tokens, batches, labelled examples.

Torch is named for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Batch = Mapping[str, "torch.Tensor"]
"""Named tensors whose first dimension is the sample."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a stable identity; what every reader yields."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Reject:
    """One input that could not be used: where it stood and why."""

    file: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """The identity of one training sample, from which its noise is derived."""

    epoch: int
    index: int


@dataclass(frozen=True)
class Vocabulary:
    """What an objective must know of a tokenizer: ids, and two tables over them."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special: Bools = field(repr=False)
    """special[id]: never corrupted, never predicted."""
    starts_word: Bools = field(repr=False)
    """starts_word[id]: the token opens a word; the others continue the one before."""
    ends_word: Bools | None = field(default=None, repr=False)
    """ends_word[id]: no word goes on past the token (a line's end, a mark); None where `starts_word` says it all."""
    added: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Ids of the special tokens that an objective asked for (sentinels, modes), by their text."""
    pieces: Mapping[int, Sequence[int]] = field(default_factory=dict, repr=False)
    """Ids by which a ready tokenizer was extended, each with the older ids that wrote the same text before."""
    tokens: Sequence[str] = field(default=(), repr=False)
    """The tokens as the tokenizer writes them, by id; for a network that reads their spelling."""

    @cached_property
    def ordinary(self) -> Ints:
        """The ids that are not special, in order: what another token may be drawn from."""
        return np.flatnonzero(~self.special)

    def word_starts(self, ids: Ints) -> Bools:
        """Say of each token of a row, or of rows, whether it opens a word there, by itself or by what precedes it."""
        ends = self.special if self.ends_word is None else self.special | self.ends_word
        opens: Bools = self.starts_word[ids]
        opens[..., :1] = True
        opens[..., 1:] |= ends[ids[..., :-1]]
        return opens


@dataclass(frozen=True)
class RowShape:
    """How an objective wants its rows cut out of the token stream."""

    length: int
    """Tokens in a row, special ones included. T5 cuts longer rows than the model reads, since it shortens them."""
    opens: bool = True
    """[CLS] stands first."""
    closes: bool = True
    """[SEP] stands last."""
    separates: bool = True
    """[SEP] stands between two documents of a row."""
    sentences: bool = False
    """`Rows.sentences` says where sentences start."""
    segments: bool = False
    """Two segments of one document, `[CLS] A [SEP] B [SEP]`, that meet at a sentence's end; padded if it is short."""
    whole_sentences: bool = False
    """Segments hold whole sentences where they fit, so that no cut tells which came first; the rest is padding."""


@dataclass(frozen=True)
class Rows:
    """A batch of token rows before any corruption; packed ones have no padding."""

    ids: Ints
    """Token ids, shape (rows, row length), special tokens included."""
    samples: Sequence[Sample]
    sentences: Sequence[Ints] = ()
    """For each row, the columns at which a sentence starts, where the shape asked for them."""
    second: Ints | None = None
    """For rows of two segments: the column at which the second one starts, shape (rows,)."""
    negative_ids: Ints | None = None
    """For rows of two segments: as many tokens of another document, from a sentence's start, shape (rows, length)."""

    def take(self, places: Ints, length: int | None = None) -> Rows:
        """Return some of the rows, the beginning of each alone where a length is given."""
        return Rows(
            self.ids[places, :length],
            [self.samples[place] for place in places],
            [starts[starts < (length or self.ids.shape[1])] for starts in (self.sentences[p] for p in places)]
            if self.sentences
            else (),
            None if self.second is None else self.second[places],
            None if self.negative_ids is None else self.negative_ids[places],
        )


@dataclass(frozen=True)
class ColumnKind:
    """What the values of a column must be, and how that is said to a person."""

    needs: str
    """Ends the sentence "Every row needs …"."""
    fits: Callable[[Any], bool]
    """Says whether one value, which is there, is of this kind."""
    is_text: bool = False
    """A value is a text: an empty one is no gap, and formats without types are told to read it as text."""


@dataclass(frozen=True)
class InputColumn:
    """A column of a labelled file that a task reads."""

    name: str
    kind: ColumnKind
    setting: str
    """The setting of a recipe that names it, such as `task.text`."""
    is_gold: bool = False
    """It holds what is to be predicted, and becomes `Examples.labels`."""


@dataclass(frozen=True)
class Examples:
    """Labelled rows of one split: the columns that a task asked for, and the gold value of each row."""

    columns: Mapping[str, Sequence[Any]]
    labels: Sequence[Any]
    """One gold value per row, of any type that JSON knows; None throughout where the task has no gold column."""
    source: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Examples:
        """Return the chosen rows in the given order."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Examples(columns, [self.labels[i] for i in indices], self.source)


Split = Literal["train", "validation", "test"]


Feature = dict[str, Any]
"""What a model reads in one piece, before padding: token ids and the like, and notes for `decode`.

`example` is the number of the example it belongs to, where one may have several (windows over a long text); without
it, feature i is example i. Every example has one feature or more, in order.
"""


@dataclass(frozen=True)
class InputSpec:
    """How a checkpoint reads text: by which tokenizer, as which family of network, and how much at once."""

    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    family: str
    max_length: int

    @property
    def pad(self) -> int:
        """Return the id of the padding token."""
        found: int = self.tokenizer.pad_token_id
        return found


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning-rate factor and the moment at which they begin to move."""

    names: tuple[str, ...]
    lr_scale: float = 1.0
    starts: float = 0.0
    """Share of the budget that is spent when the group begins to move; until then it stays bit-identical."""


class MixtureComponent(NamedTuple):
    """Some of a feed's samples, by their number, and the share of all draws that falls to them."""

    size: int
    share: float
