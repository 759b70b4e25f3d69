"""The recipe of `headstart pretrain`. It imports no torch, so a wrong recipe is refused quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from headstart.core import registry
from headstart.core.config import BackboneSection, ObjectiveSection, Section
from headstart.corpus.read import mixture
from headstart.corpus.read.mixture import Corpus
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.evaluation.cost import CostConfig
from headstart.stages.runs.settings import StoredTraining
from headstart.tasks.source import require_local_checkpoint
from headstart.tokens.settings import TokenizerConfig
from headstart.training.budget import Budget
from headstart.training.settings import require_recomputable


class RowPhase(Section):
    """A phase of training on rows of one length."""

    length: int = Field(ge=8, description="tokens in a row, including [CLS] and [SEP]")
    share: float = Field(gt=0, le=1, description="fraction of the budget; the fractions of all phases sum to 1")


SeqLength = Annotated[
    Annotated[int, Field(ge=8), Tag("<length>")] | Annotated[list[RowPhase], Tag("<phases>")],
    Discriminator(lambda value: "<phases>" if isinstance(value, list) else "<length>"),
]


class PretrainTraining(StoredTraining):
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
    shuffle_buffer_tokens: int | None = Field(
        None,
        ge=1024,
        description="tokens whose rows are shuffled together, in blocks drawn from the whole corpus; by default all "
        "rows are shuffled together, and each is a random read",
    )
    shuffle_block_tokens: int = Field(
        2**21, ge=256, description="consecutive tokens in a block, with shuffle_buffer_tokens"
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

    @model_validator(mode="after")
    def _buffer_of_blocks(self) -> Self:
        if self.shuffle_buffer_tokens is not None and self.shuffle_buffer_tokens < 2 * self.shuffle_block_tokens:
            raise ValueError(
                f"shuffle_buffer_tokens is {self.shuffle_buffer_tokens:,}, and shuffle_block_tokens is "
                f"{self.shuffle_block_tokens:,}. A buffer has at least two blocks. Raise it, or lower the latter."
            )
        return self

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

    @property
    def stretch(self) -> int:
        """Return the number of consecutive tokens that are read together; 0 if rows are read in any order."""
        return 0 if self.shuffle_buffer_tokens is None else self.shuffle_block_tokens

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

    @model_validator(mode="after")
    def _recomputes_the_same(self) -> PretrainRecipe:
        # An invalid section is None here; its error is reported separately.
        name = getattr(self.objective, registry.SELECTOR["objectives"], None)
        if name is not None and isinstance(self.training, PretrainTraining):
            require_recomputable(self.training, "objectives", name)
        return self

    @model_validator(mode="after")
    def _can_stream(self) -> PretrainRecipe:
        # An invalid section is None here; its error is reported separately.
        if not isinstance(self.corpus, StreamedCorpus) or not isinstance(self.training, PretrainTraining):
            return self
        training, problem = self.training, ""
        if Budget.parse(training.budget).unit == "epochs":
            problem = f"training.budget is {training.budget!r}, but the size of a streamed corpus is not known when "
            problem += "training starts. Give the budget in time, tokens, steps or FLOPs."
        elif len(training.phases) > 1:
            problem = "training.seq_length has several lengths, but a streamed corpus is read in rows of one length. "
            problem += "Give one length."
        elif training.dataloader_num_workers:
            problem = f"training.dataloader_num_workers is {training.dataloader_num_workers}, but a streamed corpus is "
            problem += "read by threads of the training process. Set it to 0."
        elif training.shuffle_buffer_tokens is not None:
            problem = f"training.shuffle_buffer_tokens is {training.shuffle_buffer_tokens:,}, but the rows of a "
            problem += "streamed corpus are shuffled in windows of corpus.stream.shuffle_parts parts. Remove it, and "
            problem += "set the latter if the windows are too small."
        if problem:
            raise ValueError(problem)
        return self

    def require_local_inputs(self) -> None:
        """Raise if the text or a checkpoint is missing; what is not on this machine is not looked up."""
        mixture.require_local_files(self.corpus)
        start = getattr(self.backbone, "path", None)
        if start is not None:
            require_local_checkpoint(start, "backbone.path")
