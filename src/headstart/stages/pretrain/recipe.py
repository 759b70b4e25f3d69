"""The recipe of `headstart pretrain`. It imports no torch, so a wrong recipe is refused quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from headstart.core.config import BackboneSection, ObjectiveSection, Section
from headstart.corpus.read import mixture
from headstart.corpus.read.fsspec_store import WRITABLE
from headstart.corpus.read.mixture import Corpus
from headstart.corpus.read.urls import without_options
from headstart.evaluation.cost import CostConfig
from headstart.tokens.settings import TokenizerConfig
from headstart.training.settings import TrainingSettings


class RowPhase(Section):
    """A phase of training on rows of one length."""

    length: int = Field(ge=8, description="tokens in a row, including [CLS] and [SEP]")
    share: float = Field(gt=0, le=1, description="fraction of the budget; the fractions of all phases sum to 1")


SeqLength = Annotated[
    Annotated[int, Field(ge=8), Tag("<length>")] | Annotated[list[RowPhase], Tag("<phases>")],
    Discriminator(lambda value: "<phases>" if isinstance(value, list) else "<length>"),
]


class PretrainTraining(TrainingSettings):
    """The settings of the training loop, the length of the rows and the size of the batches."""

    budget: str = "30 min"
    seq_length: SeqLength = Field(
        128,
        description="tokens in a row, including [CLS] and [SEP]; or several lengths in sequence, such as BERT's "
        "[{length: 128, share: 0.9}, {length: 512, share: 0.1}]; validation uses the first",
    )
    batch_tokens: int = Field(
        8192, ge=8, description="tokens in one update, rounded down to whole rows, and at least one row"
    )
    checkpoint_store: str | None = Field(
        None,
        description="URL of a folder in an object store (s3, gs, az) to which each checkpoint is uploaded; a run whose "
        "output is empty resumes from it",
    )

    snapshots: int = Field(
        0,
        ge=0,
        description="divides the budget into this many parts and keeps the network after each, in the folder "
        "`snapshots` of the output, for `headstart probe --over-run`; 0 keeps only the last; one process",
    )

    @field_validator("seq_length")
    @classmethod
    def _shares_sum_to_one(cls, value: int | list[RowPhase]) -> int | list[RowPhase]:
        total = 1.0 if isinstance(value, int) else sum(phase.share for phase in value)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"its shares sum to {total:g}; they must sum to 1. BERT used 0.9 and 0.1.")
        return value

    @field_validator("checkpoint_store")
    @classmethod
    def _is_writable(cls, value: str | None) -> str | None:
        if value is not None and value.partition("://")[0] not in WRITABLE:
            raise ValueError(
                f"it is {without_options(value)!r}; checkpoints are uploaded to URLs of {', '.join(WRITABLE)}."
            )
        return value

    @field_validator("early_stopping_patience")
    @classmethod
    def _has_no_early_stopping(cls, value: int | None) -> int | None:
        if value is not None:
            raise ValueError(
                "pre-training spends its whole budget and keeps its last weights. Remove early_stopping_patience."
            )
        return value

    @property
    def phases(self) -> list[RowPhase]:
        """Return the phases in order; a single length is one phase."""
        length = self.seq_length
        return [RowPhase(length=length, share=1.0)] if isinstance(length, int) else length

    @property
    def longest(self) -> int:
        """Return the length of the longest rows."""
        return max(phase.length for phase in self.phases)

    def rows_of(self, length: int) -> int:
        """Return the number of rows of a length in one update."""
        return max(1, self.batch_tokens // length)


class WarmStart(Section):
    """Start the embeddings from co-occurrence counts and the output bias from frequencies (Levy & Goldberg 2014)."""

    window: int = Field(5, ge=1, le=50, description="tokens on either side that count as context")
    limit_tokens: int = Field(100_000_000, ge=1000, description="maximum number of tokens counted, over all corpora")


class PretrainRecipe(Section):
    """A complete pre-training run."""

    verb: ClassVar[str] = "pretrain"

    seed: int = 0
    output: Path
    corpus: Corpus
    tokenizer: TokenizerConfig | None = Field(
        None, description="the tokenizer to train or to use; a finished corpus (corpus.from) may bring its own"
    )
    backbone: BackboneSection
    objective: ObjectiveSection
    warm_start: WarmStart | None = Field(
        None, description="token vectors counted from the corpus, as the first embeddings of a new network"
    )
    training: PretrainTraining = PretrainTraining()
    cost: CostConfig = CostConfig()

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _default_tokenizer(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill in the defaults, except for a finished corpus, which may have its own tokenizer."""
        corpus = info.data.get("corpus")
        if value is None and (corpus is None or not mixture.built_parts(corpus)):
            return TokenizerConfig()
        return value
