"""The plain objects that flow through Headstart: documents, token rows, batches, labeled examples.

    Document ─ tokenizer ─ Rows ─ objective ─ Batch          (pre-training)
    Examples ─ task ─ Feature ─ task ─ Batch                 (fine-tuning)

`core.contracts` defines who produces and who consumes them. Torch is imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.core.errors import ArtifactError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Batch = Mapping[str, "torch.Tensor"]
"""Named tensors, each of shape (samples, …)."""
UNLABELED = "unlabeled"
"""The entry of a batch that is True for the rows without a label, shape (rows,); absent if all rows have one."""
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


# Raw text


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a stable id. Every reader yields documents."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Reject:
    """One input row that could not be read, with its position and the reason."""

    file: str
    position: str
    """Where in the file, for example `line 2` or `row 300`."""
    reason: str


# Token rows


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """The identity of one training sample.

    Together with the seed and a purpose it determines everything random about the sample: its mask, its noise, its
    negatives (see `core.randomness`). That makes a resumed run exact and the sample order independent of the number of
    processes.
    """

    epoch: int
    index: int
    """Number of the sample in the dataset, before shuffling."""


@dataclass(frozen=True)
class Vocabulary:
    """What an objective needs to know about a tokenizer: special ids and tables over all ids."""

    size: int
    pad: int
    """Id of the padding token; -1 here and below if the tokenizer has none."""
    cls: int
    sep: int
    mask: int
    special: Bools = field(repr=False)  # (size,)
    """special[id]: the token is never corrupted and never predicted."""
    starts_word: Bools = field(repr=False)  # (size,)
    """starts_word[id]: the token begins a word; other tokens continue the previous one."""
    ends_word: Bools | None = field(default=None, repr=False)  # (size,)
    """ends_word[id]: no word continues after the token (a line break, a punctuation mark).
    None if `starts_word` alone decides."""
    added: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Ids of the special tokens that an objective asked for (sentinels, modes), by token."""
    pieces: Mapping[int, Sequence[int]] = field(default_factory=dict, repr=False)
    """For a tokenizer that was extended: each new id → the older ids that encoded the same text before."""
    tokens: Sequence[str] = field(default=(), repr=False)
    """The tokens as strings, by id, for networks that read characters."""

    def require(self, name: Literal["cls", "mask"]) -> int:
        """Return the id of a special token that an objective writes; raises if the tokenizer has none."""
        token: int = getattr(self, name)
        if token < 0:
            raise ArtifactError(
                f"the tokenizer has no {name} token",
                allowed="This objective writes one into its rows",
                do="Train a tokenizer, set tokenizer.path to another one, or choose another objective",
            )
        return token

    def require_frame(self) -> None:
        """Raise if the tokenizer cannot frame rows and pad them with a token that is none of the frame."""
        frame = (self.cls, self.sep)
        if min(*frame, self.pad) < 0 or self.pad in frame:
            raise ArtifactError(
                "the tokenizer has no [CLS], no [SEP], or no [PAD] that differs from them",
                allowed="The padded rows of this objective need all three",
                do="Train a tokenizer, or set tokenizer.path to another one",
            )

    @cached_property
    def ordinary(self) -> Ints:
        """The ids that are not special, ascending: random replacements are drawn from these."""
        return np.flatnonzero(~self.special)

    def word_starts(self, ids: Ints) -> Bools:
        """Return which tokens begin a word, given the tokens before them.

        Args:
            ids: token ids, shape (seq_length,) or (rows, seq_length).

        Returns:
            A mask of the same shape.
        """
        ends = self.special if self.ends_word is None else self.special | self.ends_word
        starts: Bools = self.starts_word[ids]
        starts[..., :1] = True
        starts[..., 1:] |= ends[ids[..., :-1]]
        return starts


@dataclass(frozen=True)
class RowShape:
    """How an objective wants its rows cut from the token stream."""

    length: int
    """Tokens per row, including special ones. T5 asks for rows longer than the model reads, since it shortens them."""
    add_cls: bool = True
    """Each row begins with [CLS]."""
    add_sep: bool = True
    """Each row ends with [SEP]."""
    separate_documents: bool = True
    """[SEP] separates the documents within a row."""
    sentence_starts: bool = False
    """Fill `Rows.sentence_starts`."""
    segments: bool = False
    """Each row is two segments of one document, `[CLS] A [SEP] B [SEP]`, split at a sentence boundary and padded."""
    whole_sentences: bool = False
    """Segments consist of whole sentences where they fit, so that no cut reveals which came first; the rest is
    padding."""
    one_sentence: bool = False
    """Each row is one sentence, `[CLS] … [SEP]`, padded; what is longer than a row is cut off."""


@dataclass(frozen=True)
class Rows:
    """A batch of token rows before corruption. Packed rows have no padding."""

    ids: Ints  # (rows, seq_length)
    """Token ids, including special tokens."""
    samples: Sequence[Sample]  # (rows,)
    sentence_starts: Sequence[Ints] = ()  # rows × (sentences,)
    """For each row, the columns at which a sentence begins, if the shape asks for them."""
    second_start: Ints | None = None  # (rows,)
    """For rows of two segments: the column at which the second segment begins."""
    negative_ids: Ints | None = None  # (rows, seq_length)
    """For rows of two segments: tokens of another document, from the beginning of a sentence."""

    def take(self, indices: Ints, length: int | None = None) -> Rows:
        """Return the selected rows, cut to their first `length` tokens if that is given."""
        end = length or self.ids.shape[1]
        starts = [self.sentence_starts[i] for i in indices] if self.sentence_starts else ()
        return Rows(
            self.ids[indices, :length],
            [self.samples[i] for i in indices],
            [columns[columns < end] for columns in starts],
            None if self.second_start is None else self.second_start[indices],
            None if self.negative_ids is None else self.negative_ids[indices],
        )


# Labeled data


@dataclass(frozen=True)
class ColumnKind:
    """The type of a column's values, with the words for error messages."""

    needs: str
    """Completes the sentence "Every row needs …"."""
    fits: Callable[[Any], bool]
    """Returns whether a value that is present has this type."""
    is_text: bool = False
    """Values are texts: an empty one is not a missing value, and untyped formats such as CSV are read as text."""
    convert: Callable[[Any], Any] | None = None
    """Converts a value of the file to the one that the task uses; None leaves it unchanged."""


@dataclass(frozen=True)
class InputColumn:
    """A column of a labeled file that a task reads."""

    name: str
    kind: ColumnKind
    setting: str
    """The recipe setting that names the column, such as `task.text`."""
    is_gold: bool = False
    """The column holds the value to predict and becomes `Examples.labels`."""


@dataclass(frozen=True)
class Examples:
    """Labeled rows of one split: the columns that a task reads, and the gold value of each row."""

    columns: Mapping[str, Sequence[Any]]
    labels: Sequence[Any]
    """One gold value per row, of any JSON type; None for every row if the task has no gold column."""
    source: str = ""
    """The file the rows come from, for messages and the model card."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Examples:
        """Return the selected rows in the given order."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Examples(columns, [self.labels[i] for i in indices], self.source)


Feature = dict[str, Any]
"""One unpadded input of a model: token ids and so on, and notes for `Task.decode`.

`example` is the index of the example that the feature belongs to, if one example may have several (windows over a long
text). Without it, feature i belongs to example i. Every example has at least one feature, in order.
"""


@dataclass(frozen=True)
class InputSpec:
    """How a checkpoint reads text: its tokenizer, its model family and its maximum length."""

    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    family: str
    max_length: int
    target_cls: bool = True
    """The targets of an encoder-decoder begin with [CLS], if the tokenizer adds it."""

    @property
    def pad(self) -> int:
        """Return the id of the padding token."""
        pad_token_id: int = self.tokenizer.pad_token_id
        return pad_token_id


@dataclass(frozen=True)
class LabeledFeatures:
    """Encoded rows, and a way to run the model on them, for what is fitted without gradients."""

    train: Sequence[Feature]
    validation: Sequence[Feature]
    gold: Sequence[Any]
    """The gold value of each validation example."""
    spec: InputSpec
    run: Callable[[Sequence[Feature]], Sequence[Any]] = field(repr=False)
    """Returns the model's output for each feature."""


# Training


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning-rate factor and a start of training."""

    names: tuple[str, ...]
    lr_scale: float = 1.0
    starts: float = 0.0
    """Fraction of the budget after which the group is trained; until then its parameters do not change."""
    plateaus: int = 0
    """Evaluations without improvement after which the group is trained; until then its parameters do not change."""


class MixtureComponent(NamedTuple):
    """A range of consecutive samples of a `BatchSource`, and the fraction of all draws that it receives."""

    size: int
    share: float
