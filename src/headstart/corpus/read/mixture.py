"""The `corpus` section of a recipe: raw files, a finished corpus, or several of either with a share each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headstart.core.config import Section, require_unique_names
from headstart.core.data import Document
from headstart.corpus.read import readers, urls
from headstart.corpus.read.built import BuiltCorpus
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.corpus.read.streamed import StreamedCorpus

_WEIGHT = "fraction of the rows read, relative to the other weights; by size if no corpus has a weight"
_NAME = "letters, digits, _ and -; the held-out loss is reported under it"


class NamedCorpus(CorpusConfig):
    """One of several corpora, as raw files."""

    name: str = Field(pattern=r"^[\w-]+$", description=_NAME)
    weight: float | None = Field(None, gt=0, description=_WEIGHT)


class NamedBuiltCorpus(BuiltCorpus):
    """One of several corpora, finished by `headstart corpus build`."""

    name: str = Field(pattern=r"^[\w-]+$", description=_NAME)
    weight: float | None = Field(None, gt=0, description=_WEIGHT)


def _part_tag(value: Any) -> str:
    return "<built>" if isinstance(value, BuiltCorpus) or (isinstance(value, dict) and "from" in value) else "<files>"


NamedPart = Annotated[
    Annotated[NamedCorpus, Tag("<files>")] | Annotated[NamedBuiltCorpus, Tag("<built>")], Discriminator(_part_tag)
]
CorpusPart: TypeAlias = CorpusConfig | BuiltCorpus
"""One corpus: raw files, or a finished corpus."""


class CorpusMixture(Section):
    """Several corpora, sampled by weight, or by size with small corpora upweighted."""

    parts: list[NamedPart] = Field(description="the corpora, each a section with a name")
    exponent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="a corpus of n tokens is sampled in proportion to n^exponent: 1 by size, 0 uniformly; "
        "multilingual BERT used 0.7, XLM-R 0.3; the temperature is 1 / exponent",
    )
    prepared: Path | None = Field(None, description="folder for a tokenizer and shards that several runs share")

    @model_validator(mode="after")
    def _is_consistent(self) -> CorpusMixture:
        _require_consistent(self.parts, self.exponent)
        return self


def _require_consistent(parts: Sequence[NamedCorpus | NamedBuiltCorpus], exponent: float | None) -> None:
    if not parts:
        raise ValueError("it must contain at least one corpus.")
    require_unique_names([part.name for part in parts], "corpus")
    unweighted = [part.name for part in parts if part.weight is None]
    if unweighted and len(unweighted) < len(parts):
        raise ValueError(f"{unweighted[0]!r} has no weight, but others have; give a weight to all of them or to none.")
    without = [part.name for part in parts if part.language is None]
    if without and len(without) < len(parts):
        raise ValueError(f"{without[0]!r} has no language, but others have; give one to all of them or to none.")
    if exponent is not None and not unweighted:
        raise ValueError("it has weights and an exponent; remove one of the two.")


def _from_list(parts: list[NamedCorpus | NamedBuiltCorpus]) -> CorpusMixture:
    _require_consistent(parts, None)
    return CorpusMixture.model_construct(parts=parts, exponent=None, prepared=None)


def _corpus_tag(value: Any) -> str:
    if isinstance(value, list):
        return "<list>"
    if isinstance(value, CorpusMixture) or (isinstance(value, dict) and "parts" in value):
        return "<several>"
    if isinstance(value, StreamedCorpus) or (isinstance(value, dict) and value.get("stream") and "from" not in value):
        return "<stream>"
    return _part_tag(value)


Corpus = Annotated[
    Annotated[CorpusConfig, Tag("<files>")]
    | Annotated[BuiltCorpus, Tag("<built>")]
    | Annotated[StreamedCorpus, Tag("<stream>")]
    | Annotated[CorpusMixture, Tag("<several>")]
    | Annotated[list[NamedPart], AfterValidator(_from_list), Tag("<list>")],
    Discriminator(_corpus_tag),
]
"""One corpus, a list of several, or such a list as `parts` of a section that sets how they are sampled."""


def prepared_in(corpus: Corpus) -> Path | None:
    """Return the folder for tokenizer and shards that the recipe names."""
    assert not isinstance(corpus, list), "validation turns a list into a mixture"
    return corpus.prepared


def languages_of(corpus: Corpus) -> list[str]:
    """Return the languages of the corpora, each once, sorted; empty if they have none."""
    return sorted({part.language for part in parts_of(corpus).values() if part.language is not None})


def parts_of(corpus: Corpus) -> dict[str, CorpusPart]:
    """Return the corpora by name; a single corpus has the empty name."""
    if isinstance(corpus, CorpusMixture):
        return {part.name: part for part in corpus.parts}
    assert isinstance(corpus, CorpusPart)
    return {"": corpus}


def built_parts(corpus: Corpus) -> list[BuiltCorpus]:
    """Return the finished corpora among the parts."""
    return [part for part in parts_of(corpus).values() if isinstance(part, BuiltCorpus)]


def is_weighted(corpus: Corpus) -> bool:
    """Return True if the shares are known without the sizes: one corpus, or several with weights."""
    return not isinstance(corpus, CorpusMixture) or all(part.weight is not None for part in corpus.parts)


def shares_of(corpus: Corpus, sizes: Sequence[float]) -> list[float]:
    """Return the share of each corpus in the rows read, given their sizes; the shares sum to 1.

    By size, the share is n^exponent divided by the sum over all corpora (Devlin et al. 2018, multilingual BERT: 0.7;
    Conneau et al. 2020, XLM-R: 0.3). Small languages are then neither drowned nor repeated too often.
    """
    if not isinstance(corpus, CorpusMixture):
        return [1.0]
    exponent = 1.0 if corpus.exponent is None else corpus.exponent
    weights = [
        size**exponent if part.weight is None else part.weight for part, size in zip(corpus.parts, sizes, strict=True)
    ]
    return [weight / sum(weights) for weight in weights]


def split_documents(part: CorpusPart, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a corpus with their split, in one pass, and fill the receipt."""
    if isinstance(part, BuiltCorpus):
        return part.split_documents(receipt)
    return readers.split_documents(part, seed, receipt)


def documents(part: CorpusPart, receipt: Receipt) -> Iterator[Document]:
    """Yield the documents of both splits of a corpus and fill the receipt."""
    if isinstance(part, BuiltCorpus):
        return (document for _, document in part.split_documents(receipt))
    return readers.documents(part, receipt)


def sources(part: CorpusPart) -> list[dict[str, Any]]:
    """Describe the content of a corpus, for fingerprints."""
    return part.sources() if isinstance(part, BuiltCorpus) else readers.sources(part)


def require_local_files(corpus: Corpus) -> None:
    """Raise if a pattern of the corpus matches no file, or a folder is no finished corpus; URLs are not looked up."""
    for part in parts_of(corpus).values():
        if isinstance(part, BuiltCorpus):
            if not part.is_remote:
                part.manifest()
        else:
            readers.expand([file for file in part.files if not urls.is_remote(file)])


def text_bytes(part: CorpusPart) -> int:
    """Return the size of the uncompressed text of a corpus."""
    return part.text_bytes() if isinstance(part, BuiltCorpus) else readers.text_bytes(part)


def token_count(part: CorpusPart) -> int | None:
    """Return the number of training tokens of a finished corpus with token shards; None for all other corpora."""
    return part.token_count() if isinstance(part, BuiltCorpus) else None
