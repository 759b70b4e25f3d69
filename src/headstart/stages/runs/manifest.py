"""What `headstart.json` records about a pre-trained checkpoint and about a fine-tuned model.

The models are written with the keys of their fields. A manifest of an older version loads too: fields that it lacks
get their defaults, and keys that are unknown here are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headstart.checkpoint.names import name_of
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.evaluation.cost import PriceTag

MACHINES = "machines.json"
"""The file of an unfinished run that lists the machines it was trained on."""
ADAPTER = "adapter_config.json"
"""The file by which peft recognizes a folder with an adapter instead of a whole model."""

ADAPTED = "adapt_first/checkpoint"
"""The subfolder of a run with the checkpoint that `adapt_first` chose; it has no weights if that is the start."""


class _Record(BaseModel):
    """A part of a manifest; keys that are unknown here are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Machine(_Record):
    """A machine that a run was trained on, and what was chosen there automatically."""

    cpu: str = ""
    """The model of the processor."""
    cores: int = 0
    """Cores that the process may use."""
    threads: int = 0
    """Threads that torch uses in one process."""
    memory_gb: float = 0.0
    """The memory of the whole machine."""
    device: str = ""
    """cpu, or the name of the GPU."""
    precision: str = ""
    """The number format: what the recipe sets, or what `auto` became."""
    attention: str = ""
    """The attention implementation of the network, by its name in transformers."""


class Manifest(BaseModel):
    """The entries that the manifests of both training verbs have."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    KIND: ClassVar[str]
    """The `kind` of the artifact."""

    recipe: dict[str, Any]
    """The filled recipe, with the keys of the version that wrote it."""
    seed: int
    parents: dict[str, str] = Field(default_factory=dict)
    """Content hashes of what the artifact was made from, by name."""
    machines: list[Machine] = Field(default_factory=list)
    """The machines that the run was trained on, in order; several if it was resumed elsewhere."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of an artifact, without checking its files."""
        return cls.from_dict(artifact.read_manifest(folder), folder)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Read what `to_dict` returned; `folder` is named in errors."""
        if values.get("kind", cls.KIND) != cls.KIND:
            raise ArtifactError(f"{folder} is a {values['kind']}; a {cls.KIND} is needed here")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            raise ArtifactError(
                f"{folder / artifact.MANIFEST} has no usable `{key}` ({problem['msg']})",
                do="Restore the folder or create it again",
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the fields that were set."""
        return self.model_dump(exclude_unset=True)


class SplitCounts(_Record):
    """The size of one split of a corpus."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0


class SourceFile(_Record):
    """One file of a corpus."""

    name: str


class BuiltCorpusData(_Record):
    """A corpus that `headstart corpus build` finished."""

    folder: str
    title: str = ""
    corpus: str = ""
    """The content hash of the corpus."""
    datasheet: str = ""
    """The SHA-256 hash of its datasheet."""


class CorpusData(_Record):
    """One corpus that was trained on."""

    share: float = 1.0
    """The fraction of the training rows that were drawn from it."""
    sources: list[SourceFile] = Field(default_factory=list)
    train: SplitCounts = SplitCounts()
    validation: SplitCounts = SplitCounts()
    built: BuiltCorpusData | None = None
    """Where the text comes from, if it is a finished corpus and not raw files."""


class StreamData(_Record):
    """How much of a streamed corpus was read."""

    parts: int = 0
    parts_read: int = 0
    """Parts that were read at least once, including those that were read ahead."""


class PretrainData(_Record):
    """The text of a pre-training run."""

    sources: list[SourceFile] = Field(default_factory=list)
    train: SplitCounts = SplitCounts()
    validation: SplitCounts = SplitCounts()
    built: BuiltCorpusData | None = None
    """Where the text comes from, if it is a single finished corpus."""
    corpora: dict[str, CorpusData] = Field(default_factory=dict)
    """Each corpus by name, if there are several."""
    stream: StreamData | None = None
    """How much was read, if the corpus was streamed; `train` counts only that."""


class PretrainProgress(_Record):
    """How far a pre-training run went."""

    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    epochs_of: dict[str, float] = Field(default_factory=dict)
    """Epochs over each corpus by name, if there are several."""


class PretrainMetrics(_Record):
    """Scores of a pre-training run on held-out text."""

    validation: dict[str, float] = Field(default_factory=dict)
    unigram_entropy: float = float("nan")
    """The loss of a unigram model, for comparison."""


class PretrainManifest(Manifest):
    """What a run of `headstart pretrain` records."""

    KIND: ClassVar[str] = "checkpoint of pretrain"

    data: PretrainData = PretrainData()
    progress: PretrainProgress = PretrainProgress()
    metrics: PretrainMetrics = PretrainMetrics()
    parameters: int = 0
    architecture: str = ""
    """The class of the network."""
    cost: PriceTag = Field(default_factory=PriceTag)


class SplitOverlap(_Record):
    """Rows of one split that are also in another one. A row counts once, under the first kind that applies."""

    split: str
    """The split whose rows are counted: validation or test."""
    other: str
    """The split in which they occur too: train (the rows of all seeds) or validation."""
    rows: int = 0
    """All rows of the split."""
    exact: int = 0
    """Rows with the same texts."""
    normalized: int = 0
    """Rows with the same letters and digits, but other case, spaces or punctuation."""
    near: int = 0
    """Rows that differ in a few words."""

    @property
    def shared(self) -> int:
        """The number of shared rows of all kinds."""
        return self.exact + self.normalized + self.near

    def sentence(self) -> str:
        """Return the counts in words."""
        rows = {"train": "training rows"}.get(self.other, f"{self.other} rows")
        kinds = [f"{self.exact:,} exactly"] * bool(self.exact)
        kinds += [f"{self.normalized:,} apart from case, spaces and punctuation"] * bool(self.normalized)
        kinds += [f"{self.near:,} as near-duplicates"] * bool(self.near)
        share = self.shared / max(self.rows, 1)
        return (
            f"{self.shared:,} of {self.rows:,} {self.split} rows ({share:.1%}) are also among the {rows}: "
            f"{', '.join(kinds)}."
        )


class FinetuneData(_Record):
    """The labeled rows of a fine-tuning run: their files and how many of them were used."""

    train_source: str = ""
    validation_source: str = ""
    test_source: str = ""
    train_rows: int = 0
    validation_rows: int = 0
    test_rows: int = 0
    hashes: dict[str, str] = Field(default_factory=dict)
    """The beginning (16 digits) of the SHA-256 hash of each file, by the name of its split."""
    overlap: list[SplitOverlap] = Field(default_factory=list)
    """Rows that two splits share, for each pair of splits that has any."""

    truncated: dict[str, int] = Field(default_factory=dict)
    """The number of rows with a truncated text, by split; a split for which it is unknown is left out."""
    max_length: int = 0
    """The number of tokens to which texts were truncated."""

    def truncation(self) -> list[str]:
        """Return a sentence about the share of truncated texts in each split; none if nothing was truncated."""
        if not any(self.truncated.values()):
            return []
        rows = {split: count for split, count, _ in self.splits()}
        shares = [f"{count / max(rows[split], 1):.1%} of {split}" for split, count in self.truncated.items()]
        return [f"Texts beyond training.max_length ({self.max_length} tokens) are truncated: {', '.join(shares)}."]

    def splits(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, number of rows and file of each split."""
        yield "train", self.train_rows, self.train_source
        yield "validation", self.validation_rows, self.validation_source
        yield "test", self.test_rows, self.test_source


class AdaptedStart(_Record):
    """The pre-training that came before fine-tuning, and the checkpoint along it that a probe chose."""

    step: int = 0
    """The step of the chosen checkpoint; 0 is the checkpoint of the recipe itself."""
    scores: dict[int, float] = Field(default_factory=dict)
    """The score of a linear probe on the validation rows for each checkpoint, by step; the highest is chosen."""
    metric: str = ""
    losses: dict[int, float] = Field(default_factory=dict)
    """The loss on held-out text at each evaluation of the pre-training, by step; it does not choose."""
    objective: str = ""
    tokens: int = 0
    """Tokens that the pre-training read."""
    cost: PriceTag = Field(default_factory=PriceTag)
    """The cost of the pre-training and of the probes."""
    is_counted: bool = True
    """False if the pre-training was finished before by another run, which counts its cost."""

    def sentence(self) -> str:
        """Return how the checkpoint was chosen, in words."""
        start = self.scores.get(0, 0.0)
        others = ", ".join(f"step {step:,} {score:.3f}" for step, score in self.scores.items() if step)
        chosen = f"step {self.step:,}" if self.step else "the start"
        return (
            f"Before fine-tuning, the checkpoint was pre-trained on {self.tokens:,} tokens of text ({self.objective}). "
            f"A linear probe on the validation rows chose {chosen} ({self.metric}: start {start:.3f}, {others})."
        )


class FinetuneManifest(Manifest):
    """What a run of `headstart finetune` records. `seed` is the seed whose weights are published."""

    KIND: ClassVar[str] = "model of finetune"

    task: dict[str, Any] = Field(default_factory=dict)
    """The settings of the task, what it learned from the training rows (`Task.state`), and its metrics."""
    data: FinetuneData = FinetuneData()
    metrics: dict[str, list[dict[str, float]]] = Field(default_factory=dict)
    """Test scores of each method, one entry per seed."""
    validation: dict[str, list[dict[str, float]]] = Field(default_factory=dict)
    """Validation scores of each method, one entry per seed; the first score selects the seed."""
    table: str = ""
    """The comparison of all methods, in Markdown."""
    verdicts: list[str] = Field(default_factory=list)
    """The comparison in sentences."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Methods that could not be used, each with the reason."""
    notes: list[str] = Field(default_factory=list)
    """Sentences about the encoding of the test rows."""
    comparisons: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The paired test of the recipe's own adaptation against each other method."""
    cost: PriceTag = Field(default_factory=PriceTag)
    """The cost of all trained models."""
    architecture: str = ""
    """The class of the network."""
    trainable_parameters: int = 0
    steps: int = 0
    """The number of training steps of the published model."""
    best_step: int = 0
    """The step whose weights were kept: the best on the validation rows. 0 if it is unknown."""
    pipeline: str | None = None
    """The transformers pipeline that runs the model."""
    is_adapter: bool = False
    """True if the folder has a peft adapter instead of a whole model."""
    usage: str | None = None
    """Lines of Python that use the model, where that is not a pipeline."""
    target_cls: bool = True
    """The targets of an encoder-decoder began with [CLS], if its tokenizer adds it; earlier versions trained so."""

    mixture: dict[str, Any] = Field(default_factory=dict)
    """The learned weights of the layers (`weights`) and their scale (`gamma`), if the network mixes its layers."""

    adapted: AdaptedStart | None = None
    """How the checkpoint was pre-trained further before fine-tuning, if the recipe has `adapt_first`."""

    trained_with: list[str] = Field(default_factory=list)
    """The other tasks of a run of `headstart multitask`, whose models share this one's body."""

    @property
    def method(self) -> str:
        """The name of the recipe's own adaptation in `metrics` and in the table."""
        return method_name(self.recipe["adaptation"]["name"], self.trained_with)

    def sharing(self) -> str:
        """Return with which tasks the model was trained together, in words; empty if it was trained alone."""
        if not self.trained_with:
            return ""
        return (
            f"The model was trained together with {', '.join(self.trained_with)}, which share its body; the recipe is "
            f"that of the task alone, and the cost of {self.method} is that of all tasks together."
        )

    @property
    def layer_weights(self) -> str:
        """The learned weights of the layers in words, the lowest first; empty if the network does not mix them."""
        if not self.mixture:
            return ""
        weights = ", ".join(f"{weight:.3f}" for weight in self.mixture["weights"])
        return f"{weights} (from the lowest layer up), γ {self.mixture['gamma']:.3f}"

    @property
    def kept_weights(self) -> str:
        """The step whose weights were kept, of how many; empty if it is unknown."""
        if not (self.best_step and self.steps):
            return ""
        return f"step {self.best_step:,} of {self.steps:,} (best on the validation rows)"


class MultitaskManifest(Manifest):
    """What a run of `headstart multitask` records about all tasks; each task's folder has a `FinetuneManifest`."""

    KIND: ClassVar[str] = "models of multitask"

    shares: dict[str, float] = Field(default_factory=dict)
    """The fraction of all draws that each task receives."""
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)
    """The test score of each method by task, the mean over seeds."""
    table: str = ""
    """The same in Markdown, a row for each task."""
    overlaps: list[str] = Field(default_factory=list)
    """Sentences about test rows of one task that are among the training rows of another."""
    cost: PriceTag = Field(default_factory=PriceTag)
    """The cost of all trained models, that of the tasks' joint training counted once."""


def method_name(adaptation: str, trained_with: Sequence[str]) -> str:
    """Return the name of an adaptation in tables; one that trained several tasks together is named after that too."""
    return f"multitask_{adaptation}" if trained_with else adaptation


def read_machines(folder: Path) -> list[Machine]:
    """Return the machines that are recorded in a folder; none for a run of an earlier version."""
    try:
        entries = json.loads((folder / MACHINES).read_text(encoding="utf-8"))
        return [Machine.model_validate(entry) for entry in entries]
    except (OSError, ValueError, TypeError, ValidationError):
        return []


def read_any(folder: Path) -> PretrainManifest | FinetuneManifest:
    """Verify a trained artifact and return its manifest."""
    values = artifact.verify(folder)
    for model in (PretrainManifest, FinetuneManifest):
        if values.get("kind") == model.KIND:
            return model.from_dict(values, folder)
    if values.get("kind") == MultitaskManifest.KIND:
        names = list(values["recipe"]["tasks"])
        raise ArtifactError(
            f"{folder} has several models, one for each task",
            allowed=f"Its tasks: {', '.join(names)}",
            do=f"Pass the folder of a task, such as {folder / names[0]}",
        )
    raise ArtifactError(
        f"{name_of(folder) or folder} is a {values.get('kind')}",
        allowed="This needs an output of `headstart pretrain` or `headstart finetune`",
    )
