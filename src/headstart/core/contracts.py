"""The protocols: who does what with the objects of `core.data`.

    Document ─ tokens ─ rows ─ Objective.corrupt ─ Batch ─ Backbone's model ─ Objective.loss
    labelled rows ─ Task.encode ─ Task.collate ─ Batch ─ Adaptation's model ─ Task.loss
                                                                    └─ Task.predict ─ Task.decode ─ metrics

The training loop sees a Learner, and the Feeds of later phases, alone. Torch is named for type checkers only.
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
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
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

    def row_shape(self, seq_length: int) -> RowShape:
        """Say how rows are cut, so that the model reads `seq_length` tokens of each."""
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


@runtime_checkable
class Task(Protocol):
    """A kind of labelled problem: head, encoding, decoding, metrics.

    `headstart.tasks.base.BaseTask` answers what most have in common.
    """

    paper: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    pipeline: ClassVar[str | None]
    """The pipeline of transformers that runs a fine-tuned model, for its card; None where there is none."""
    usage: ClassVar[str | None]
    """Lines of Python by which a saved model is used, for its card, where that is not a pipeline."""
    learns: ClassVar[bool]
    """Whether there is a loss to train by; a task that only asks a model as it is has none."""
    labels: list[Any]
    """The label set in the order of the model's outputs; empty where there is none (numbers, texts)."""

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def auto_class(self, family: str) -> str:
        """Name the class of transformers that holds this task's head in a family of networks."""
        ...

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the columns that are read from the file of a split, and what they must hold."""
        ...

    def fit_labels(self, train: Examples) -> None:
        """Learn the label set, and whatever else decoding needs, from the training rows alone."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what `fit_labels` learnt, in types that JSON knows; it is written into the manifest."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, in place of `fit_labels`."""
        ...

    def show(self, train: Examples, seed: int) -> None:
        """Take the training rows of one seed, where predictions draw on them: the examples of a prompt."""
        ...

    def head_settings(self) -> dict[str, Any]:
        """Return what the model's config must say about the head."""
        ...

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Adjust a new head's starting point to the training labels, where that helps."""
        ...

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Return what the model reads of the examples; `training` ones carry what the loss needs."""
        ...

    def length(self, feature: Feature) -> int:
        """Return the number of tokens of a feature, so that like lengths can be batched together."""
        ...

    def collate(self, features: Sequence[Feature], reading: InputSpec) -> Batch:
        """Pad features to their longest and stack them; notes for `decode` stay behind."""
        ...

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's predictions."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions over which the loss is summed: examples, or tokens."""
        ...

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads in a batch, padding included, since it is computed too."""
        ...

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Run the model and return one raw output per feature: an array of logits, generated ids, a vector."""
        ...

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Turn the outputs of all features of a split into one prediction per example, as the data has them."""
        ...

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Say in sentences what a person should know of the encoding: how much was cut, what the model cannot see."""
        ...

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics of this problem, the one to select models by first."""
        ...

    def save(self, model: PreTrainedModel, reading: InputSpec, folder: Path) -> None:
        """Write the finished model, and whatever else another library needs to load it; the tokenizer comes after."""
        ...

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Make one row of each text, whatever it is, for the contract suite: small, and with something to learn."""
        ...


class ReplaySource(Protocol):
    """The pre-training of a checkpoint, to be gone on with beside a task."""

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Return as many corrupted rows of the pre-training text, chosen by the samples' identity."""
        ...

    def network(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the network of pre-training with its own head on the body of `model`, which both then share."""
        ...

    def loss(self, network: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the objective's loss, summed over the batch's predictions."""
        ...

    def weight(self, batch: Batch) -> float:
        """Return the number of the objective's predictions in a batch."""
        ...


class ModelSource(Protocol):
    """Where an adaptation gets the network from: the checkpoint's weights, or its shape alone."""

    path: Path
    task: Task
    family: str

    def pretrained(self, **loading: Any) -> PreTrainedModel:
        """Load the checkpoint; the task's head is new. Keywords go to `from_pretrained`: quantisation, a device map."""
        ...

    def fresh(self) -> PreTrainedModel:
        """Build the same network with new weights throughout."""
        ...

    def new_parameters(self) -> frozenset[str]:
        """Name the parameters that the checkpoint did not hold (the head), after `pretrained`."""
        ...

    def rehearsal(self) -> ReplaySource:
        """Return the checkpoint's pre-training; raises where the folder does not tell what it was."""
        ...


@runtime_checkable
class Adaptation(Protocol):
    """A way to turn a pre-trained model into one for a task: what is kept, what moves.

    `headstart.adaptation.base.BaseAdaptation` answers all but `adapt` for a method that changes neither loss nor model.
    Settings of its Config that `training` has too (learning_rate, budget, lr_scheduler_type, …) stand in for those.
    """

    paper: ClassVar[str]

    @property
    def Config(self) -> type[Section]:
        """The section of a recipe that sets this up, declared as a class inside this one."""
        ...

    def supports(self, task: Task, family: str) -> str | None:
        """Say why this method cannot serve a task on a family of networks, as a clause; None where it can."""
        ...

    def supports_kind(self, kind: str) -> str | None:
        """Say why this method cannot serve a kind of network, its config's `model_type`, as a clause; or None."""
        ...

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Return the model to train, plain or wrapped by peft, with `requires_grad` set on what moves."""
        ...

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return the trainable parameters in groups of equal learning-rate factor and start."""
        ...

    def extend(self, batch: Batch, samples: Sequence[Sample]) -> Batch:
        """Return a training batch with what the method's loss needs besides: a pure function of the samples."""
        ...

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over `task.weight(batch)`: the task's, or that and what the method adds."""
        ...

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Undo whatever served training alone; what is saved is plain Hugging Face, or an adapter of peft's."""
        ...

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load what `finish` gave as an adapter, on the checkpoint that it was trained on."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """Samples in, batches out: what a stretch of training reads."""

    @property
    def lengths(self) -> Sequence[int] | None:
        """Tokens of each sample where they differ, so that batches can spare padding; None for packed rows."""
        ...

    @property
    def parts(self) -> Sequence[MixtureComponent]:
        """The parts to draw from by share, in the order of their samples; empty where all samples are alike."""
        ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Build a batch: a pure function of the samples and the run's seed."""
        ...


@runtime_checkable
class Learner(BatchSource, Protocol):
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
