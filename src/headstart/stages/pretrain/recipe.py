"""The recipe of `headstart pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Discriminator, Field, Tag, field_validator

from headstart.core.config import BackboneSection, ObjectiveSection, Section
from headstart.corpus.read.mixture import Corpus
from headstart.evaluation.cost import CostConfig
from headstart.stages.pretrain.warm_start import WarmStart
from headstart.tokens.settings import TokenizerConfig
from headstart.training.settings import TrainingSettings


class RowPhase(Section):
    """A stretch of training on rows of one length."""

    length: int = Field(ge=8, description="tokens in a row, [CLS] and [SEP] included")
    share: float = Field(gt=0, le=1, description="share of the budget; those of all phases make 1")


SeqLength = Annotated[
    Annotated[int, Field(ge=8), Tag("<length>")] | Annotated[list[RowPhase], Tag("<phases>")],
    Discriminator(lambda value: "<phases>" if isinstance(value, list) else "<length>"),
]


class PretrainTraining(TrainingSettings):
    """The loop's settings, and how long rows and how large batches are."""

    budget: str = "30 min"
    seq_length: SeqLength = Field(
        128,
        description="tokens in a row, [CLS] and [SEP] included; or several lengths one after the other, such as BERT's "
        "[{length: 128, share: 0.9}, {length: 512, share: 0.1}]; held-out rows have the first",
    )
    batch_tokens: int = Field(
        8192, ge=8, description="tokens in one update, in whole rows: rounded down, and one row at the least"
    )

    @field_validator("seq_length")
    @classmethod
    def _shares_make_one(cls, value: int | list[RowPhase]) -> int | list[RowPhase]:
        total = 1.0 if isinstance(value, int) else sum(phase.share for phase in value)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"its shares make {total:g}; they must make 1. BERT used 0.9 and 0.1.")
        return value

    @field_validator("early_stopping_patience")
    @classmethod
    def _spends_its_budget(cls, value: int | None) -> int | None:
        if value is not None:
            raise ValueError("pre-training spends its budget and ends with its last weights. Leave patience out.")
        return value

    @property
    def phases(self) -> list[RowPhase]:
        """Return the lengths of rows in their order, one phase where there is one length."""
        whole = self.seq_length
        return [RowPhase(length=whole, share=1.0)] if isinstance(whole, int) else whole

    @property
    def longest(self) -> int:
        """Return the length of the longest rows."""
        return max(phase.length for phase in self.phases)

    def rows_of(self, length: int) -> int:
        """Return how many rows of a length make one update."""
        return max(1, self.batch_tokens // length)


class PretrainRecipe(Section):
    """A whole pre-training run."""

    verb: ClassVar[str] = "pretrain"

    seed: int = 0
    output: Path
    corpus: Corpus
    tokenizer: TokenizerConfig = TokenizerConfig()
    backbone: BackboneSection
    objective: ObjectiveSection
    warm_start: WarmStart | None = Field(None, description="token vectors counted from the corpus, for a new network")
    training: PretrainTraining = PretrainTraining()
    cost: CostConfig = CostConfig()
