"""Raw text → tokenizer and token shards, each an artifact whose name is a hash of what it was made from.

The raw files are read once. With an existing tokenizer, one pass writes the shards of both splits. Without one, the
pass samples text for the tokenizer and writes all text to a spool, from which the shards are encoded. A corpus that
`headstart corpus build` finished with a tokenizer is used as it is. Of a streamed corpus, only what is read first is
prepared here (see `stream`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from headstart.core import artifact, config, renames
from headstart.core.data import Document, Vocabulary
from headstart.core.errors import DataError
from headstart.core.lock import lock_beside
from headstart.core.log import logger
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read import mixture
from headstart.corpus.read.built import WHOLE_BYTES, BuiltCorpus
from headstart.corpus.read.mixture import Corpus, CorpusPart
from headstart.corpus.read.readers import SPLITS, Receipt
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.stages.pretrain.spool import TextSpool
from headstart.stages.pretrain.stream import head_documents
from headstart.tokens import extension, sampling, shards, tokenizer
from headstart.tokens.settings import TokenizerConfig

_REPORT_SECONDS = 10
_NOT_CONTENT = ("files", "from", "prepared", "max_reject_share", "name", "weight", "language")
"""Settings of a corpus that do not change its documents."""


@dataclass(frozen=True)
class PreparedCorpus:
    """The token shards of both splits of one corpus, and its share of the rows read."""

    name: str
    share: float
    train: shards.Shards
    validation: shards.Shards
    language: str | None = None
    """The language at the start of each row, if the rows have it."""


@dataclass(frozen=True)
class Prepared:
    """What pre-training reads: a tokenizer and the token shards of each corpus."""

    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    corpora: list[PreparedCorpus]
    parents: dict[str, str]
    facts: dict[str, Any]

    @cached_property
    def unigram_frequencies(self) -> npt.NDArray[np.float64]:
        """Return the frequency of each token in the rows read (vocabulary,)."""
        weighted = [corpus.share * corpus.train.unigrams / corpus.train.tokens for corpus in self.corpora]
        frequencies: npt.NDArray[np.float64] = np.sum(weighted, axis=0)
        return frequencies

    @property
    def unigram_entropy(self) -> float:
        """Return the loss in nats of a model that predicts tokens by their frequency."""
        if len(self.corpora) == 1:
            return float(self.corpora[0].train.counts["unigram_entropy_nats"])
        frequencies = self.unigram_frequencies[self.unigram_frequencies > 0]
        return float(-(frequencies * np.log(frequencies)).sum())


def prepare(
    corpus: Corpus, settings: TokenizerConfig, seed: int, folder: Path, quiet: bool = False, verify: bool = True,
    stretch: int = 0,
) -> Prepared:  # fmt: skip
    """Train or load the tokenizer and write the shards of each corpus, unless they exist.

    Args:
        corpus: the corpus section of the recipe.
        settings: the tokenizer to train, to extend or to load; see `build.tokenizer_of`.
        seed: decides which documents are held out and which text the tokenizer is trained on.
        folder: where tokenizer and shards are written, unless the corpus section names another folder.
        quiet: do not log the progress.
        verify: check the hashes of shards that exist, above 4 GB of samples of the large files. One process of a
            distributed run is enough.
        stretch: the number of consecutive tokens that are read together from a store; 0 if rows are read in any order.
    """
    folder = mixture.prepared_in(corpus) or folder
    sections = mixture.parts_of(corpus)
    parts = {name: _Part(name, section, section.prepared or folder) for name, section in sections.items()}
    with _tokenizer_folder(corpus, parts, settings, seed, folder, quiet) as (tokenizer_folder, spool):
        loaded, identity = tokenizer.load(tokenizer_folder), artifact.identity(tokenizer_folder)
        encoder = _Encoder(loaded, identity, seed, spool, quiet, verify, len(parts), stretch)
        opened = {name: encoder.shards(part) for name, part in parts.items()}
    shares = mixture.shares_of(corpus, [splits["train"].tokens for splits in opened.values()])
    corpora = [
        PreparedCorpus(name, share, splits["train"], splits["validation"], sections[name].language)
        for (name, splits), share in zip(opened.items(), shares, strict=True)
    ]
    vocabulary = replace(vocabulary_of(loaded), pieces=extension.load_pieces(tokenizer_folder))
    parents = {"tokenizer": identity, **_parents(parts, corpora)}
    return Prepared(loaded, vocabulary, corpora, parents, _facts(parts, corpora))


@dataclass(frozen=True)
class _Part:
    """One corpus of the recipe, and the folder for its shards."""

    name: str
    section: CorpusPart
    folder: Path

    @cached_property
    def sources(self) -> list[dict[str, Any]]:
        """Describe the files, which are opened once for this."""
        return mixture.sources(self.section)

    @property
    def made_from(self) -> dict[str, Any]:
        """Describe the documents by content: the files, and the settings that select documents from them."""
        dumped = self.section.model_dump(mode="json")
        settings = {key: value for key, value in dumped.items() if key not in _NOT_CONTENT}
        return {"sources": self.sources, "corpus": settings}

    def split_documents(self, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
        """Yield the documents with their split, of a streamed corpus those that are read first; errors name it."""
        with naming(self.name):
            if isinstance(self.section, StreamedCorpus):
                yield from head_documents(self.section, seed, receipt)
                return
            if isinstance(self.section, BuiltCorpus):
                self.section.verify()
            yield from mixture.split_documents(self.section, seed, receipt)


@contextmanager
def _tokenizer_folder(
    corpus: Corpus, parts: Mapping[str, _Part], settings: TokenizerConfig, seed: int, folder: Path, quiet: bool
) -> Iterator[tuple[Path, TextSpool | None]]:
    """Yield the folder of the tokenizer, and the text that was read to train it, if it was trained just now.

    The lock is held until the block ends, so that other processes wait for the shards and do not read the text too.
    """
    if settings.path is not None and settings.extend is None:
        yield settings.path, None
        return
    shares = mixture.shares_of(corpus, _sizes(corpus, parts))
    made_from = _tokenizer_made_from(parts, shares, settings, seed)
    target = folder / f"tokenizer-{config.fingerprint(made_from)}"
    spool_folder = folder / f".{target.name}.spool"
    if artifact.is_complete(target) and not spool_folder.exists():
        yield target, None
        return
    with lock_beside(target):
        if artifact.is_complete(target):
            # The spool of a process that was killed while it encoded.
            shutil.rmtree(spool_folder, ignore_errors=True)
            yield target, None
            return
        with TextSpool(spool_folder) as spool:
            with artifact.staged(target, "tokenizer", made_from=made_from) as staging:
                texts = [_recorded(part, seed, spool, quiet) for part in parts.values()]
                chunks = sampling.sample_mixture(texts, shares, settings.sample_mb, seed)
                _write_tokenizer(chunks, settings, staging.path)
            yield target, spool


def _recorded(part: _Part, seed: int, spool: TextSpool, quiet: bool) -> Iterator[str]:
    """Yield the training text of a corpus while all of its text is written to the spool."""
    receipt, report = Receipt(), _reporter("read", quiet)
    for text in spool.record(part.name, part.split_documents(seed, receipt), receipt):
        yield text
        report(receipt.documents)


def _sizes(corpus: Corpus, parts: Mapping[str, _Part]) -> list[int]:
    """Return the sizes that stand in for the token counts before there is a tokenizer; zeros if no share needs them."""
    return [0 if mixture.is_weighted(corpus) else mixture.text_bytes(part.section) for part in parts.values()]


def _tokenizer_made_from(
    parts: Mapping[str, _Part], shares: list[float], settings: TokenizerConfig, seed: int
) -> dict[str, Any]:
    """Describe what a tokenizer is made from; its folder is named by a hash of this."""
    described = [part.made_from for part in parts.values()]
    text = described[0] if "" in parts else {"corpora": described, "shares": shares}
    if settings.path is None:
        return renames.original({**text, "tokenizer": settings.model_dump(mode="json"), "seed": seed})
    extended = {"extends": artifact.identity(settings.path), "by": settings.extend, "sample_mb": settings.sample_mb}
    return {**text, "tokenizer": extended, "seed": seed}


def _write_tokenizer(chunks: list[str], settings: TokenizerConfig, folder: Path) -> None:
    if settings.path is None:
        tokenizer.train_on(chunks, settings).save_pretrained(str(folder))
    else:
        assert settings.extend is not None
        extension.extend(tokenizer.load(settings.path), chunks, settings.extend, folder)


@dataclass(frozen=True)
class _Encoder:
    """Opens the token shards of corpora, and writes those that are missing."""

    tokenizer: PreTrainedTokenizerFast
    identity: str
    seed: int
    spool: TextSpool | None
    quiet: bool
    verify: bool
    corpora: int
    """The number of corpora, which share the cache for those in stores."""
    stretch: int

    def shards(self, part: _Part) -> dict[str, shards.Shards]:
        """Return the shards of each split of a corpus."""
        section = part.section
        if isinstance(section, BuiltCorpus) and section.tokenizer is not None:
            with naming(part.name):
                if self.verify:
                    section.verify()
                return {
                    split: shards.Shards(section.shards(split), section.open_tokens(split, self.corpora, self.stretch))
                    for split in SPLITS
                }
        made_from = part.made_from
        fingerprint = config.fingerprint({**made_from, "tokenizer": self.identity, "seed": self.seed})
        targets = {split: part.folder / f"{split}-{fingerprint}" for split in SPLITS}
        written = self._write_missing(part, targets, made_from)
        for split, target in targets.items():
            if self.verify and split not in written:
                artifact.verify(target, "shards", whole_bytes=WHOLE_BYTES)
        return {split: shards.Shards(target) for split, target in targets.items()}

    def _write_missing(self, part: _Part, targets: Mapping[str, Path], made_from: dict[str, Any]) -> list[str]:
        """Encode the splits whose shards are missing, in one pass, and return their names.

        If several processes need the same shards, one writes them and the others wait.
        """
        with ExitStack() as stack:
            staged: dict[str, artifact.Staging] = {}
            for split, target in targets.items():
                if artifact.is_complete(target):
                    continue
                stack.enter_context(lock_beside(target))
                if not artifact.is_complete(target):
                    parents = {"tokenizer": self.identity}
                    context = artifact.staged(target, "shards", parents=parents, made_from=made_from)
                    staged[split] = stack.enter_context(context)
            if staged:
                receipt = self._encode(part, {split: staging.path for split, staging in staged.items()})
                for staging in staged.values():
                    staging.facts["reading"] = {"receipt": receipt.summary()}
        return list(staged)

    def _encode(self, part: _Part, folders: Mapping[str, Path]) -> Receipt:
        """Encode the documents of some splits, from the spool if it has them, and return the row counts."""
        receipt = Receipt()
        if self.spool is not None:
            receipt, documents = self.spool.receipts[part.name], self.spool.documents(part.name)
        else:
            documents = part.split_documents(self.seed, receipt)
        needed = ((split, document) for split, document in documents if split in folders)
        with naming(part.name):
            shards.write_splits(needed, self.tokenizer, folders, on_documents=_reporter("encoded", self.quiet))
        receipt.warn("prepare")
        return receipt


def _parents(parts: Mapping[str, _Part], corpora: list[PreparedCorpus]) -> dict[str, str]:
    """Return the hashes of all shards, and of the finished corpora and their datasheets."""
    parents: dict[str, str] = {}
    for corpus in corpora:
        section = parts[corpus.name].section
        for split in SPLITS:
            if isinstance(section, BuiltCorpus) and section.tokenizer is not None:
                identity = section.shards_identity(split)
            else:
                identity = artifact.identity(getattr(corpus, split).folder)
            parents[f"{split} {corpus.name}".strip()] = identity
    for part in parts.values():
        if isinstance(part.section, BuiltCorpus):
            built = part.section.parents()
            parents |= {f"{kind} {part.name}".strip(): identity for kind, identity in built.items()}
    return parents


def _facts(parts: Mapping[str, _Part], corpora: list[PreparedCorpus]) -> dict[str, Any]:
    """Return what the manifest and the card report about the data: totals, and each corpus if there are several."""
    described = {
        corpus.name: {
            "share": corpus.share,
            "sources": parts[corpus.name].sources,
            **{split: getattr(corpus, split).counts for split in SPLITS},
            **_built_facts(parts[corpus.name].section),
        }
        for corpus in corpora
    }
    if "" in described:
        return {key: value for key, value in described[""].items() if key != "share"}
    totals = {
        split: {key: sum(facts[split][key] for facts in described.values()) for key in shards.SUMMED_COUNTS}
        for split in SPLITS
    }
    sources = [source for facts in described.values() for source in facts["sources"]]
    return {"sources": sources, **totals, "corpora": described}


def _built_facts(section: CorpusPart) -> dict[str, Any]:
    """Return what the card reports about a finished corpus; empty for raw files."""
    if not isinstance(section, BuiltCorpus):
        return {}
    return {"built": {"folder": section.location, "title": section.manifest()["facts"]["title"], **section.parents()}}


@contextmanager
def naming(corpus: str) -> Iterator[None]:
    """Name the corpus in data errors, if there are several."""
    try:
        yield
    except DataError as error:
        if not corpus or error.found.startswith(f"corpus {corpus!r}: "):
            raise
        raise DataError(f"corpus {corpus!r}: {error.found}", allowed=error.allowed, do=error.do) from error


def _reporter(done: str, quiet: bool) -> Callable[[int], None]:
    """Return a callback that logs every ten seconds how many documents are read or encoded."""
    last = time.monotonic()

    def report(count: int) -> None:
        nonlocal last
        if not quiet and time.monotonic() - last >= _REPORT_SECONDS:
            last = time.monotonic()
            logger.info(f"prepare: {count:,} documents {done}")

    return report
