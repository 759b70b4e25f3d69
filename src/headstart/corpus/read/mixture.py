"""Several corpora in one run: each has a name, and a share of what is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headstart.core.config import Section, require_own_names
from headstart.corpus.read.readers import CorpusConfig


class NamedCorpus(CorpusConfig):
    """One of several corpora."""

    name: str = Field(pattern=r"^[\w-]+$", description="letters, digits, _ and -; held-out loss is reported under it")
    weight: float | None = Field(
        None, gt=0, description="share of the rows read, relative to the others' weights; by size where none has one"
    )


class CorpusMixture(Section):
    """Several corpora, drawn from by weight, or by size with the small ones lifted."""

    parts: list[NamedCorpus] = Field(description="the corpora, each a section with a name")
    exponent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="a corpus of n tokens is drawn from in proportion to n^exponent: 1 as they come, 0 all alike; "
        "multilingual BERT used 0.7, XLM-R 0.3; the temperature is 1 / exponent",
    )
    prepared: Path | None = Field(None, description="folder for tokenizer and shards that several runs share")

    @model_validator(mode="after")
    def _checked(self) -> CorpusMixture:
        _require_fitting(self.parts, self.exponent)
        return self


def _require_fitting(parts: Sequence[NamedCorpus], exponent: float | None) -> None:
    if not parts:
        raise ValueError("it must hold one corpus or more.")
    require_own_names([part.name for part in parts], "corpus")
    bare = [part.name for part in parts if part.weight is None]
    if bare and len(bare) < len(parts):
        raise ValueError(f"{bare[0]!r} has no weight and others have; give one to all of them, or to none.")
    if exponent is not None and not bare:
        raise ValueError("it has weights and an exponent; leave out one of the two.")


def _listed(parts: list[NamedCorpus]) -> CorpusMixture:
    _require_fitting(parts, None)
    return CorpusMixture.model_construct(parts=parts, exponent=None, prepared=None)


def _form(value: Any) -> str:
    if isinstance(value, list):
        return "<list>"
    return (
        "<several>" if isinstance(value, CorpusMixture) or (isinstance(value, dict) and "parts" in value) else "<one>"
    )


Corpus = Annotated[
    Annotated[CorpusConfig, Tag("<one>")]
    | Annotated[CorpusMixture, Tag("<several>")]
    | Annotated[list[NamedCorpus], AfterValidator(_listed), Tag("<list>")],
    Discriminator(_form),
]
"""One corpus, a list of several, or such a list as `parts` of a section that says how they are drawn from."""


def prepared_in(corpus: Corpus) -> Path | None:
    """Return the folder that the recipe names for tokenizer and shards."""
    assert not isinstance(corpus, list), "a list has become a mixture on being read"
    return corpus.prepared


def parts_of(corpus: Corpus) -> dict[str, CorpusConfig]:
    """Return the corpora by name; one alone has the empty name."""
    if isinstance(corpus, CorpusMixture):
        return {part.name: part for part in corpus.parts}
    assert isinstance(corpus, CorpusConfig)
    return {"": corpus}


def shares_of(corpus: Corpus, sizes: Sequence[float]) -> list[float]:
    """Return the share of each corpus in what is read, given how large they are; they make 1.

    By size it is n^exponent over the sum of all (Devlin et al. 2018, multilingual BERT: 0.7; Conneau et al. 2020,
    XLM-R: 0.3), so that a language with little text is not drowned, nor repeated without end.
    """
    if not isinstance(corpus, CorpusMixture):
        return [1.0]
    exponent = 1.0 if corpus.exponent is None else corpus.exponent
    pulls = [
        size**exponent if part.weight is None else part.weight for part, size in zip(corpus.parts, sizes, strict=True)
    ]
    return [pull / sum(pulls) for pull in pulls]
