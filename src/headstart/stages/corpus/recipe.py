"""The recipe of `headstart corpus build`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from headstart.core import config
from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.core.registry import suggest
from headstart.corpus.clean.part import CleanConfig
from headstart.corpus.clean.quality import Quality
from headstart.corpus.datasheet.questions import QUESTIONS
from headstart.corpus.dedup.contamination import ContaminationConfig
from headstart.corpus.dedup.duplicates import DuplicatesConfig
from headstart.corpus.dedup.lines import LinesConfig
from headstart.corpus.parts.engine import EngineConfig
from headstart.corpus.read.sources import SourceConfig
from headstart.corpus.select.proportions import MixtureConfig
from headstart.tokens.settings import TokenizerConfig


class ReadingConfig(Section):
    """How raw files are read."""

    longest_mb: float = Field(64, gt=0, description="a longer line, record or page is rejected, and never held")
    part_mb: float = Field(64, gt=0, description="text in a part, the unit of work and of going on after a crash")


class CorpusRecipe(Section):
    """A whole corpus."""

    verb: ClassVar[str] = "corpus"

    seed: int = 0
    output: Path
    title: str = Field("A text corpus", description="the corpus's name in its datasheet")
    sources: list[SourceConfig] = Field(min_length=1, description="where the text comes from; the first is preferred")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="share of unreadable rows past which the run fails")
    reading: ReadingConfig = ReadingConfig()
    clean: CleanConfig = CleanConfig()
    contamination: ContaminationConfig | None = Field(None, description="evaluation sets that must not be in it")
    duplicates: DuplicatesConfig | None = Field(DuplicatesConfig(), description="documents that stand there twice")
    lines: LinesConfig | None = Field(LinesConfig(), description="lines that stand in many documents")
    mixture: MixtureConfig = MixtureConfig()
    validation: float = Field(0.005, ge=0, le=0.5, description="share of documents held out, by hash")
    tokenizer: TokenizerConfig | None = Field(None, description="write token shards as well, by this tokenizer")
    answers: dict[str, str] = Field({}, description="answers for the datasheet, by the names of its blanks")
    engine: EngineConfig = EngineConfig()

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, value: list[SourceConfig]) -> list[SourceConfig]:
        config.require_own_names([source.name for source in value], "source")
        return value

    @field_validator("answers")
    @classmethod
    def _answers_have_questions(cls, value: dict[str, str]) -> dict[str, str]:
        known = [name for asked in QUESTIONS.values() for name in asked]
        strange = next((name for name in value if name not in known), None)
        if strange:
            hint = suggest(strange, known) or "."
            raise ValueError(f"there is no question {strange!r}{hint} Known: {', '.join(known)}.")
        return value

    @model_validator(mode="after")
    def _exceptions_are_rules(self) -> CorpusRecipe:
        if self.clean.quality is not None:
            try:
                Quality(self.clean.quality, {source.name: source.without for source in self.sources})
            except RecipeError as error:
                raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _weights_are_whole(self) -> CorpusRecipe:
        bare = [source.name for source in self.sources if source.weight is None]
        if bare and len(bare) < len(self.sources):
            raise ValueError(f"source {bare[0]!r} has no weight and others have; give one to all of them, or to none.")
        return self

    @model_validator(mode="after")
    def _there_is_a_tokenizer_to_extend(self) -> CorpusRecipe:
        settings = self.tokenizer
        if settings is not None and settings.extend is not None and settings.path is None:
            raise ValueError(
                f"tokenizer.extend is {settings.extend}, and there is no tokenizer to extend. Set tokenizer.path, or "
                "leave out tokenizer.extend: one that is trained anew knows the corpus's words."
            )
        return self
