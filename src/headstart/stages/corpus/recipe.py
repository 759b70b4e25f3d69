"""The recipe of `headstart corpus build`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from headstart.core import artifact, config
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
from headstart.corpus.read import readers, sources
from headstart.corpus.read.sources import SourceConfig
from headstart.corpus.select.proportions import MixtureConfig
from headstart.tokens.settings import TokenizerConfig


class ReadingConfig(Section):
    """How raw files are read."""

    longest_mb: float = Field(64, gt=0, description="reject a longer line, record or page without reading it to memory")
    part_mb: float = Field(64, gt=0, description="text in a part: the unit of work, and of resuming after a crash")


class CorpusRecipe(Section):
    """A corpus: its sources and every step that is applied to them."""

    verb: ClassVar[str] = "corpus"

    seed: int = 0
    output: Path
    title: str = Field("A text corpus", description="the name of the corpus in its datasheet")
    sources: list[SourceConfig] = Field(
        min_length=1, description="where the text comes from; of duplicates, the first source is kept"
    )
    max_reject_share: float = Field(
        0.01, ge=0, le=1, description="maximum fraction of unreadable rows; above it the run fails"
    )
    reading: ReadingConfig = ReadingConfig()
    clean: CleanConfig = CleanConfig()
    contamination: ContaminationConfig | None = Field(
        None, description="evaluation sets that the corpus must not contain"
    )
    duplicates: DuplicatesConfig | None = Field(
        DuplicatesConfig(), description="drop documents that occur more than once"
    )
    lines: LinesConfig | None = Field(LinesConfig(), description="remove lines that occur in many documents")
    mixture: MixtureConfig = MixtureConfig()
    validation: float = Field(0.005, ge=0, le=0.5, description="fraction of documents held out, selected by hash")
    tokenizer: TokenizerConfig | None = Field(None, description="also write token shards, with this tokenizer")
    answers: dict[str, str] = Field({}, description="answers for the datasheet, by the names of its questions")
    engine: EngineConfig = EngineConfig()

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, value: list[SourceConfig]) -> list[SourceConfig]:
        config.require_unique_names([source.name for source in value], "source")
        return value

    @field_validator("answers")
    @classmethod
    def _answers_have_questions(cls, value: dict[str, str]) -> dict[str, str]:
        known = [name for questions in QUESTIONS.values() for name in questions]
        unknown = next((name for name in value if name not in known), None)
        if unknown:
            hint = suggest(unknown, known) or "."
            raise ValueError(f"there is no question {unknown!r}{hint} Known: {', '.join(known)}.")
        return value

    @model_validator(mode="after")
    def _exempt_rules_exist(self) -> CorpusRecipe:
        if self.clean.quality is not None:
            try:
                Quality(self.clean.quality, {source.name: source.without for source in self.sources})
            except RecipeError as error:
                raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _all_or_no_weights(self) -> CorpusRecipe:
        unweighted = [source.name for source in self.sources if source.weight is None]
        if unweighted and len(unweighted) < len(self.sources):
            raise ValueError(
                f"source {unweighted[0]!r} has no weight, but other sources have one; set it for all of them or none."
            )
        return self

    @model_validator(mode="after")
    def _tokenizer_to_extend_exists(self) -> CorpusRecipe:
        settings = self.tokenizer
        if settings is not None and settings.extend is not None and settings.path is None:
            raise ValueError(
                f"tokenizer.extend is {settings.extend}, but there is no tokenizer to extend. Set tokenizer.path, or "
                "leave out tokenizer.extend: a tokenizer that is trained on the corpus knows its words."
            )
        return self


def inputs_of(recipe: CorpusRecipe) -> dict[str, str]:
    """Return a fingerprint of everything that the recipe reads."""
    inputs = {"sources": config.fingerprint(sources.identities(recipe.sources))}
    if recipe.contamination is not None:
        files = [path for entry in recipe.contamination.sets for path in entry.paths()]
        inputs["contamination"] = config.fingerprint(readers.describe(files))
    if recipe.tokenizer is not None and recipe.tokenizer.path is not None:
        inputs["tokenizer"] = artifact.identity(recipe.tokenizer.path)
    return inputs
