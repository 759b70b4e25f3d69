"""The protocols that objectives, backbones, tasks and adaptations implement.

    Document ─ tokenizer ─ Rows ─ Objective.corrupt ─ Batch ─ model ─ Objective.loss          (pre-training)
    Examples ─ Task.encode ─ Task.collate ─ Batch ─ model of an Adaptation ─ Task.loss        (fine-tuning)
                                                              └─ Task.predict ─ Task.decode ─ metrics

`core.data` defines the objects that flow between them. The training loop sees only a `Learner` and the `BatchSource` of
each later phase; it does not know which method it trains. Torch is imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from headstart.core.data import (
    Batch,
    Examples,
    Feature,
    InputColumn,
    InputSpec,
    LabeledFeatures,
    MixtureComponent,
    ParameterGroup,
    Rows,
    RowShape,
    Sample,
    Split,
    Vocabulary,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headstart.core.config import Section


# Pre-training


class RowSource(Protocol):
    """All rows of one shape over a corpus. The index of a row identifies it."""

    def __len__(self) -> int: ...

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows with the indices of the samples; the epoch does not matter."""
        ...

    def prefetch(self, first: int, last: int) -> None:
        """Start to fetch the tokens of the rows [first, last), if they are in a store."""
        ...


@runtime_checkable
class Backbone(Protocol):
    """A family of networks with named sizes, built from transformers configs."""

    paper: ClassVar[str]

    @property
    def Config(self) -> type[Section]:
        """The recipe section of this backbone, a class nested in it."""
        ...

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Return a randomly initialized model of a transformers class such as "AutoModelForMaskedLM".

        Args:
            vocabulary: the vocabulary of the tokenizer.
            seq_length: the longest row that the model must read.
            auto_class: the name of a transformers auto class, which determines the head.
            scale: a factor on the width (for ELECTRA's generator).
            **changes: fields of the model config to overwrite, such as `num_labels`.
        """
        ...


class ModelMaker(Protocol):
    """Creates the networks of an objective: new ones from a backbone, or those of a checkpoint."""

    def __call__(self, auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        """Return a network with a head, of the transformers class `auto_class`.

        `part` is the subfolder in which an additional network is saved; the main network is the part "".
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """A pre-training objective: how rows become a batch, and how a model and a batch become a loss.

    `headstart.objectives.base.BaseObjective` implements most methods for an objective that trains one network on
    packed rows. A subclass implements `corrupt`, `loss` and `measure`.
    """

    paper: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    """The model families that the objective can train: encoder, decoder, encoder-decoder, …"""

    @property
    def Config(self) -> type[Section]:
        """The recipe section of this objective, a class nested in it."""
        ...

    def special_tokens(self) -> Sequence[str]:
        """Return the special tokens that the tokenizer needs in addition to its own: sentinels, modes."""
        ...

    def row_shape(self, seq_length: int) -> RowShape:
        """Return how rows are cut so that the model reads `seq_length` tokens of each."""
        ...

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the module to train: a network with its head, or several networks in one module."""
        ...

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the networks to save, by subfolder; "" is the main network."""
        ...

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Return the batch that the model reads, a pure function of the rows' samples and the seed.

        Rows of shape (rows, seq_length) become named tensors of shape (rows, …), such as `input_ids` and `labels`.
        """
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in a batch, by which the summed loss is divided."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch."""
        ...

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the loss of the assembled module, summed over the batch's predictions; a scalar tensor."""
        ...

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return sums over the batch's predictions for evaluation: `loss` first, then further metrics.

        A sum over a subset of the predictions is named `subset/loss`, and `subset/weight` is the size of the subset.
        """
        ...

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return a batch as keyword arguments of the plain model's forward pass, with `labels` (-100: ignored)."""
        ...

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Any:
        """Return a data collator for transformers' Trainer or a plain DataLoader."""
        ...


# Fine-tuning


@runtime_checkable
class Task(Protocol):
    """A kind of labeled problem: its columns, encoding, head, decoding and metrics.

    `headstart.tasks.base.BaseTask` implements what most tasks have in common.
    """

    paper: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    """The model families that have a head for this task."""
    pipeline: ClassVar[str | None]
    """The transformers pipeline that runs a fine-tuned model, for the model card; None if there is none."""
    usage: ClassVar[str | None]
    """Python code that uses a saved model, for the model card, if there is no pipeline."""
    learns: ClassVar[bool]
    """Whether the task has a loss; a task that only queries a model has none."""
    labels: list[Any]
    """The labels in the order of the model's outputs; empty for numbers and texts."""

    @property
    def Config(self) -> type[Section]:
        """The recipe section of this task, a class nested in it."""
        ...

    def auto_class(self, family: str) -> str:
        """Return the transformers auto class with this task's head, for a model family."""
        ...

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns to read from the file of a split."""
        ...

    def fit_labels(self, train: Examples) -> None:
        """Learn the label set, and whatever else decoding needs, from the training rows."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what `fit_labels` learned, as JSON types for the manifest."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned, instead of calling `fit_labels`."""
        ...

    def show(self, train: Examples, seed: int) -> None:
        """Set the training rows of one seed, if predictions use them (the examples of a few-shot prompt)."""
        ...

    def head_settings(self) -> dict[str, Any]:
        """Return the fields of the model config that describe the head, such as `id2label`."""
        ...

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Initialize a new head from the training labels, where that helps."""
        ...

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Return the model inputs of the examples; with `training`, they include what the loss needs."""
        ...

    def length(self, feature: Feature) -> int:
        """Return the number of tokens of a feature, so that similar lengths can be batched together."""
        ...

    def collate(self, features: Sequence[Feature], spec: InputSpec) -> Batch:
        """Pad features to the longest one and stack them into tensors of shape (features, longest).

        Entries that only `decode` needs are left out.
        """
        ...

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's predictions; a scalar tensor."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions over which the loss is summed: examples or tokens."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch, including padding, which is computed too."""
        ...

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Run the model and return one raw output per feature: an array of logits, generated ids, a vector."""
        ...

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Turn the outputs of all features of a split into one prediction per example, in the form of the labels."""
        ...

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each label by name for every example; an empty list if the task has none.

        A task that labels every word returns one such mapping per word. A task without a set of labels may return its
        best predictions as a tuple of pairs, each a prediction and its probability.
        """
        ...

    @property
    def has_decision(self) -> bool:
        """Whether something about decoding is chosen on the validation rows after training."""
        ...

    def fit_decision(self, outputs: Sequence[Any], gold: Sequence[Any]) -> dict[str, Any]:
        """Choose on the validation rows how outputs become predictions; returns JSON types for `set_decision`.

        The key `temperature` is the number by which the logits of the head are divided afterwards.
        """
        ...

    def set_decision(self, chosen: Mapping[str, Any]) -> None:
        """Decode with what `fit_decision` returned; an empty mapping restores the settings of the recipe."""
        ...

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Return sentences about the encoding that a user should know: how much was truncated, unknown characters."""
        ...

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the task's metrics; the first one selects models."""
        ...

    def save(self, model: PreTrainedModel, spec: InputSpec, folder: Path) -> None:
        """Save the model, and whatever other libraries need to load it, except the tokenizer."""
        ...

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Return one learnable row per text, for the contract tests."""
        ...


class ReplaySource(Protocol):
    """The pre-training of a checkpoint, to be continued during fine-tuning."""

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return one corrupted row of the pre-training text per sample, determined by the sample's identity."""
        ...

    def network(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the pre-training network with its own head; it shares its body with `model`."""
        ...

    def loss(self, network: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the objective's loss, summed over the batch's predictions; a scalar tensor."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of the objective's predictions in a batch."""
        ...


class ModelSource(Protocol):
    """Where an adaptation gets its network from: a checkpoint's weights, or only its architecture."""

    path: Path
    task: Task
    family: str

    def pretrained(self, **loading: Any) -> PreTrainedModel:
        """Load the checkpoint with a new head for the task.

        Keyword arguments are passed to `from_pretrained`: quantization, a device map.
        """
        ...

    def fresh(self) -> PreTrainedModel:
        """Return the same architecture, randomly initialized."""
        ...

    def new_parameters(self) -> frozenset[str]:
        """Return the names of the parameters that the checkpoint lacks (the head); call `pretrained` first."""
        ...

    def rehearsal(self) -> ReplaySource:
        """Return the checkpoint's pre-training; raises if the folder does not record it."""
        ...


@runtime_checkable
class Adaptation(Protocol):
    """A way to turn a pre-trained model into a model for a task: which parameters are added, trained or frozen.

    `headstart.adaptation.base.BaseAdaptation` implements everything but `adapt` for a method that changes neither the
    loss nor the model. Settings of its `Config` that `training` also has (learning_rate, budget, lr_scheduler_type, …)
    override those of `training`.
    """

    paper: ClassVar[str]

    @property
    def Config(self) -> type[Section]:
        """The recipe section of this adaptation, a class nested in it."""
        ...

    def supports(self, task: Task, family: str) -> str | None:
        """Return why the method cannot be used for a task on a model family, as a clause, or None if it can."""
        ...

    def supports_kind(self, kind: str) -> str | None:
        """Return why the method cannot be used on a `model_type`, as a clause, or None if it can."""
        ...

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Return the model to train, plain or wrapped by peft, with `requires_grad` set on what is trained."""
        ...

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return the trainable parameters, grouped by learning-rate factor and start."""
        ...

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return a training batch with the additional inputs of the method's loss, a pure function of the samples."""
        ...

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over `task.weight(batch)`: the task's loss plus what the method adds to it."""
        ...

    def solve(self, model: PreTrainedModel, task: Task, rows: LabeledFeatures) -> int:
        """Fit what the loss does not train, such as a linear head, and return the number of its parameters.

        Called before each evaluation and after training.
        """
        ...

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model to save, plain Hugging Face or a peft adapter, without what only training needed."""
        ...

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load an adapter that `finish` returned, on top of the checkpoint that it was trained on."""
        ...


# Training


@runtime_checkable
class BatchSource(Protocol):
    """Turns samples into batches. One phase of training reads one batch source."""

    @property
    def lengths(self) -> Sequence[int] | None:
        """Tokens of each sample, so that batches of similar lengths save padding; None for packed rows."""
        ...

    @property
    def parts(self) -> Sequence[MixtureComponent]:
        """The components of a mixture, in the order of their samples; empty without a mixture."""
        ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return a batch, a pure function of the samples and the run's seed."""
        ...


@runtime_checkable
class Learner(BatchSource, Protocol):
    """Everything that the training loop needs; also the batch source of the first phase."""

    @property
    def module(self) -> torch.nn.Module:
        """The module to train and save. Called with a batch, it returns the summed loss."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions in a batch."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch."""
        ...

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the trainable parameters of `module`, by name."""
        ...

    def validate(self) -> dict[str, float]:
        """Evaluate on held-out data; the first value selects checkpoints."""
        ...
