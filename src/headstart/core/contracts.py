"""The contracts on one page: what flows, and who does what with it.

    Document ─ tokens ─ rows ─ Objective.corrupt ─ Batch ─ Backbone's model ─ Objective.loss
    labelled rows ─ Task.encode ─ Task.collate ─ Batch ─ Adaptation's model ─ Task.loss

The training loop sees a Learner, and the Feeds of later phases, alone. Torch is named for type checkers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headstart.core.config import Section

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
    strangers: Ints | None = None
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
            None if self.strangers is None else self.strangers[places],
        )


class RowSource(Protocol):
    """All rows of one shape over a corpus; a row's index is its identity."""

    def __len__(self) -> int: ...

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows that the samples' indices name, whatever their epoch."""
        ...


@runtime_checkable
class Backbone(Protocol):
    """A family of networks with named sizes, over transformers' configs."""

    paper: ClassVar[str]

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def build(
        self, vocabulary: Vocabulary, row_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a freshly initialised model of a transformers class, such as "AutoModelForMaskedLM".

        `scale` multiplies the width (ELECTRA's generator), `changes` overwrite fields of the config (num_labels).
        """
        ...


class ModelMaker(Protocol):
    """Where an objective gets its networks from: new ones by a backbone, or those of a checkpoint."""

    def __call__(self, auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        """Make a network with a head, by the name of its transformers class.

        `part` names a companion that is saved in a subfolder of that name; the artifact itself is the part "".
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """A way to make a batch out of rows, and a loss out of a model and that batch.

    `headstart.objectives.base.BaseObjective` answers most of it for an objective that trains one network on packed
    rows; what is left is `corrupt`, `loss` and `measure`.
    """

    paper: ClassVar[str]
    families: ClassVar[tuple[str, ...]]

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def special_tokens(self) -> Sequence[str]:
        """Name the special tokens that the tokenizer must hold beside its own: sentinels, modes."""
        ...

    def row_shape(self, row_length: int) -> RowShape:
        """Say how rows are cut, so that the model reads `row_length` tokens of each."""
        ...

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return what is trained: a network with its head, or several under one roof."""
        ...

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the networks to save, by subfolder; "" is the artifact, the others are its companions."""
        ...

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Return the batch that the model reads; a pure function of the rows' samples and the seed."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in the batch, by which the summed loss is divided."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in the batch."""
        ...

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the loss of what `assemble` made, summed over the batch's predictions."""
        ...

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return sums over the batch's predictions for held-out data: `loss` first, then what else tells.

        A sum over some of the predictions is named `part/loss`, and `part/weight` beside it says over how many.
        """
        ...

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return a batch as keywords of the plain model's forward pass, labels among them (-100: not predicted)."""
        ...

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Any:
        """Return a data collator for transformers' Trainer or a plain DataLoader."""
        ...


@dataclass(frozen=True)
class Examples:
    """Labelled rows of one split: the columns that a task asked for."""

    columns: Mapping[str, Sequence[Any]]
    labels: Sequence[Any]
    source: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Examples:
        """Return the chosen rows in the given order."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Examples(columns, [self.labels[i] for i in indices], self.source)


@runtime_checkable
class Task(Protocol):
    """A kind of labelled problem: head, encoding, decoding, metrics."""

    paper: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    auto_class: ClassVar[str]
    """The class of transformers that holds this task's head, by name."""
    labels: list[Any]
    """The label set in the order of the model's outputs; empty where there is none (numbers, texts)."""

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def fit_labels(self, train: Examples) -> None:
        """Learn the label set from the training rows alone."""
        ...

    def head_settings(self) -> dict[str, Any]:
        """Return what the model's config must say about the head."""
        ...

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Adjust a new head's starting point to the training labels, where that helps."""
        ...

    def encode(self, examples: Examples, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[dict[str, Any]]:
        """Return one mapping per example: token ids and the label as a number."""
        ...

    def collate(self, encoded: Sequence[dict[str, Any]], pad: int) -> Batch:
        """Pad encoded examples to their longest and stack them."""
        ...

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's examples."""
        ...

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model on a batch, labels left out."""
        ...

    def decode(self, logits: npt.NDArray[np.float32]) -> list[Any]:
        """Turn the model's output into labels (or numbers) as the data has them."""
        ...

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics of this problem, the one to select models by first."""
        ...


class ModelSource(Protocol):
    """Where an adaptation gets the network from: the checkpoint's weights, or its shape alone."""

    def pretrained(self) -> PreTrainedModel:
        """Load the checkpoint; the task's head is new."""
        ...

    def fresh(self) -> PreTrainedModel:
        """Build the same network with new weights throughout."""
        ...

    def new_parameters(self) -> frozenset[str]:
        """Name the parameters that the checkpoint did not hold (the head), after `pretrained`."""
        ...


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning-rate factor."""

    names: tuple[str, ...]
    lr_scale: float = 1.0


@runtime_checkable
class Adaptation(Protocol):
    """A way to turn a pre-trained model into one for a task: what is kept, what moves.

    `headstart.adaptation.base.BaseAdaptation` answers all but `adapt` for a method that changes neither loss nor model.
    """

    paper: ClassVar[str]

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Return the model to train, with `requires_grad` set on what moves."""
        ...

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return the trainable parameters in groups of equal learning-rate factor."""
        ...

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's examples: the task's, or that and what the method adds."""
        ...

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Undo whatever served training alone, so that the saved model is plain Hugging Face."""
        ...


class Part(NamedTuple):
    """Some of a feed's samples, by their number, and the share of all draws that falls to them."""

    size: int
    share: float


@runtime_checkable
class Feed(Protocol):
    """Samples in, batches out: what a stretch of training reads."""

    @property
    def lengths(self) -> Sequence[int] | None:
        """Tokens of each sample where they differ, so that batches can spare padding; None for packed rows."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The parts to draw from by share, in the order of their samples; empty where all samples are alike."""
        ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Build a batch: a pure function of the samples and the run's seed."""
        ...


@runtime_checkable
class Learner(Feed, Protocol):
    """All that the training loop knows: samples in, summed loss out. It is the feed of its first phase itself."""

    @property
    def module(self) -> torch.nn.Module:
        """Called with a batch, it returns the summed loss; its parameters are what is trained and saved."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in a batch."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch."""
        ...

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the trainable parameters of `module` by name."""
        ...

    def validate(self) -> dict[str, float]:
        """Measure on held-out data; the first value is the one to select checkpoints by."""
        ...


class Reader(Protocol):
    """Yields documents and rejects, in a stable order, losing nothing in silence."""

    def __iter__(self) -> Iterator[Document | Reject]:
        """Iterate over the input once more from its beginning."""
        ...
