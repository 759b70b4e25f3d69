"""Raw text → tokenizer and token shards, each an artifact named by what it was made from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from headstart.core import artifact, config, renames
from headstart.core.data import Document, Vocabulary
from headstart.core.errors import DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.mixture import Corpus
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.tokens import extension, sampling, shards, tokenizer
from headstart.tokens.tokenizer import TokenizerConfig

_SPLITS = ("train", "validation")


@dataclass(frozen=True)
class PreparedCorpus:
    """The two splits of one corpus as tokens, and its share of what is read."""

    name: str
    share: float
    train: shards.Shards
    validation: shards.Shards


@dataclass(frozen=True)
class Prepared:
    """What pre-training reads: a tokenizer and the token stream of each corpus."""

    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    corpora: list[PreparedCorpus]
    parents: dict[str, str]
    facts: dict[str, Any]

    @property
    def unigram_entropy(self) -> float:
        """Return the loss in nats of a model that knows how often each token is read, and nothing else."""
        if len(self.corpora) == 1:
            return float(self.corpora[0].train.counts["unigram_entropy_nats"])
        read = np.sum([one.share * one.train.unigrams / one.train.tokens for one in self.corpora], axis=0)
        read = read[read > 0]
        return float(-(read * np.log(read)).sum())


def prepare(corpus: Corpus, tokens: TokenizerConfig, seed: int, folder: Path, quiet: bool = False) -> Prepared:
    """Train or load the tokenizer and write the shards of each corpus, unless they lie there from before."""
    folder = mixture.prepared_in(corpus) or folder
    parts = mixture.parts_of(corpus)
    if tokens.path is None:
        home = _trained(corpus, tokens, seed, folder)
    else:
        home = tokens.path if tokens.extend is None else _extended(corpus, tokens, seed, folder)
    loaded, identity = tokenizer.load(home), artifact.identity(home)
    vocabulary = replace(vocabulary_of(loaded), pieces=extension.load_pieces(home))
    opened: dict[str, list[shards.Shards]] = {}
    for name, part in parts.items():
        with naming(name):
            where = part.prepared or folder
            opened[name] = [_shards(part, split, loaded, identity, seed, where, quiet) for split in _SPLITS]
    shares = mixture.shares_of(corpus, [train.tokens for train, _ in opened.values()])
    corpora = [
        PreparedCorpus(name, share, train, validation)
        for (name, (train, validation)), share in zip(opened.items(), shares, strict=True)
    ]
    parents = {"tokenizer": identity}
    for one in corpora:
        for split in _SPLITS:
            parents[f"{split} {one.name}".strip()] = artifact.identity(getattr(one, split).folder)
    return Prepared(loaded, vocabulary, corpora, parents, _facts(parts, corpora))


def _trained(corpus: Corpus, tokens: TokenizerConfig, seed: int, folder: Path) -> Path:
    """Return the folder of the tokenizer of one corpus or several, trained if it does not lie there."""
    settings = {**_reading_of_all(corpus), "tokenizer": tokens.model_dump(mode="json"), "seed": seed}
    made_from = renames.original(settings)
    home = folder / f"tokenizer-{config.fingerprint(made_from)}"

    def train(staging: Path) -> None:
        tokenizer.train_on(_sample(corpus, tokens.sample_mb, seed), tokens).save_pretrained(str(staging))

    artifact.make_once(home, "tokenizer", train, made_from=made_from)
    return home


def _extended(corpus: Corpus, tokens: TokenizerConfig, seed: int, folder: Path) -> Path:
    """Return the folder of a ready tokenizer that has learnt the corpus's words, written if it does not lie there."""
    assert tokens.path is not None and tokens.extend is not None
    ready, most = tokenizer.load(tokens.path), tokens.extend
    settings = {"extends": artifact.identity(tokens.path), "by": most, "sample_mb": tokens.sample_mb}
    made_from = {**_reading_of_all(corpus), "tokenizer": settings, "seed": seed}
    home = folder / f"tokenizer-{config.fingerprint(made_from)}"

    def extend(staging: Path) -> None:
        extension.extend(ready, _sample(corpus, tokens.sample_mb, seed), most, staging)

    artifact.make_once(home, "tokenizer", extend, made_from=made_from)
    return home


def _sample(corpus: Corpus, megabytes: float, seed: int) -> list[str]:
    """Return chunks of the training text, each corpus in its share."""
    parts = mixture.parts_of(corpus).values()
    texts = [(d.text for d in _split(part, Receipt(), seed, validation=False)) for part in parts]
    return sampling.mixed(texts, _shares_by_bytes(corpus), megabytes, seed)


def _shares_by_bytes(corpus: Corpus) -> list[float]:
    """Return the shares before there are tokens to count."""
    parts = mixture.parts_of(corpus).values()
    return [1.0] if len(parts) == 1 else mixture.shares_of(corpus, [readers.text_bytes(part) for part in parts])


def _reading_of_all(corpus: Corpus) -> dict[str, Any]:
    parts = mixture.parts_of(corpus)
    readings = [_reading(part) for part in parts.values()]
    return readings[0] if "" in parts else {"corpora": readings, "shares": _shares_by_bytes(corpus)}


def _shards(
    corpus: CorpusConfig, split: str, loaded: PreTrainedTokenizerFast, identity: str, seed: int, folder: Path,
    quiet: bool,
) -> shards.Shards:  # fmt: skip
    """Open the shards of one split, written if they do not lie there."""
    reading = _reading(corpus)
    home = folder / f"{split}-{config.fingerprint({**reading, 'tokenizer': identity, 'seed': seed})}"
    receipt = Receipt()
    facts: dict[str, Any] = {}

    def encode(staging: Path) -> None:
        documents = _split(corpus, receipt, seed, split == "validation")
        shards.write(documents, loaded, staging, on_documents=_announcer(split, quiet))
        facts["receipt"] = receipt.summary()

    parents = {"tokenizer": identity}
    if not artifact.make_once(home, "shards", encode, parents=parents, made_from=reading, reading=facts):
        artifact.verify(home, "shards")
    if receipt.rejects:
        first = receipt.summary()["examples"][0]
        print(f"prepare: {receipt.rejects:,} rows could not be read; the first: {first}", file=sys.stderr)
    return shards.Shards(home)


def _reading(corpus: CorpusConfig) -> dict[str, Any]:
    """Describe what is read of a corpus, by content: how much of it is drawn on is another matter."""
    aside = {"prepared", "files", "max_reject_share", "name", "weight"}
    return {"sources": readers.sources(corpus), "corpus": corpus.model_dump(mode="json", exclude=aside)}


def _facts(parts: dict[str, CorpusConfig], corpora: list[PreparedCorpus]) -> dict[str, Any]:
    """Return what the manifest and the card say of the data: of all together, and of each where there are several."""
    each = {
        one.name: {
            "share": one.share,
            "sources": readers.sources(parts[one.name]),
            **{split: getattr(one, split).counts for split in _SPLITS},
        }
        for one in corpora
    }
    if "" in each:
        return {key: value for key, value in each[""].items() if key != "share"}
    together = {
        split: {key: sum(one[split][key] for one in each.values()) for key in shards.COUNTED} for split in _SPLITS
    }
    return {"sources": [source for one in each.values() for source in one["sources"]], **together, "corpora": each}


@contextmanager
def naming(corpus: str) -> Iterator[None]:
    """Say of which corpus an error speaks, where there are several."""
    try:
        yield
    except DataError as error:
        if not corpus:
            raise
        raise DataError(f"corpus {corpus!r}: {error.found}", allowed=error.allowed, do=error.do) from error


def _announcer(split: str, quiet: bool) -> Callable[[int], None]:
    """Return a callback that says every ten seconds how far the encoding is."""
    said = [time.monotonic()]

    def announce(count: int) -> None:
        if not quiet and time.monotonic() - said[0] >= 10:
            said[0] = time.monotonic()
            print(f"prepare: {count:,} documents encoded for {split}", file=sys.stderr, flush=True)

    return announce


def _split(corpus: CorpusConfig, receipt: Receipt, seed: int, validation: bool) -> Iterator[Document]:
    empty = True
    for document in readers.documents(corpus, receipt):
        if readers.is_validation(document.text, corpus.validation, seed) == validation:
            empty = False
            yield document
    if empty:
        split = "validation" if validation else "training"
        raise DataError(
            f"of the corpus's {receipt.documents:,} documents none falls into {split}",
            allowed=f"Both need text; corpus.validation is {corpus.validation:g}",
            do="Give more documents (corpus.documents says what one is), or change corpus.validation",
        )
