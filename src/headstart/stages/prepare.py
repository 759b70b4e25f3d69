"""Raw text → tokenizer and token shards, each an artifact named by what it was made from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from headstart.core import artifact, config
from headstart.core.contracts import Document, Vocabulary
from headstart.core.errors import DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus import readers
from headstart.corpus.readers import CorpusConfig, Receipt
from headstart.tokens import shards, tokenizer
from headstart.tokens.tokenizer import TokenizerConfig


@dataclass(frozen=True)
class Prepared:
    """What pre-training reads: a tokenizer and the two splits of the token stream."""

    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    train: shards.Shards
    validation: shards.Shards
    parents: dict[str, str]
    facts: dict[str, Any]


def prepare(corpus: CorpusConfig, tokens: TokenizerConfig, seed: int, folder: Path, quiet: bool = False) -> Prepared:
    """Train or load the tokenizer and write the shards, unless they lie there from before."""
    folder = corpus.prepared or folder
    sources = readers.sources(corpus)
    reading = {
        "sources": sources,
        "corpus": corpus.model_dump(mode="json", exclude={"prepared", "files", "max_reject_share"}),
    }
    made_from = {**reading, "tokenizer": tokens.model_dump(mode="json"), "seed": seed}
    tokenizer_folder = folder / f"tokenizer-{config.fingerprint(made_from)}"
    if tokens.path is not None:
        loaded = tokenizer.load(tokens.path)
    else:
        if not artifact.is_complete(tokenizer_folder):
            with artifact.staged(tokenizer_folder, "tokenizer", made_from=made_from) as staging:
                texts = (d.text for d in _split(corpus, Receipt(), seed, validation=False))
                tokenizer.train(texts, tokens, seed).save_pretrained(str(staging))
        loaded = tokenizer.load(tokenizer_folder)
    identity = artifact.identity(tokens.path or tokenizer_folder)
    opened: dict[str, shards.Shards] = {}
    parents = {"tokenizer": identity}
    facts: dict[str, Any] = {"sources": sources}
    for split in ("train", "validation"):
        shard_folder = folder / f"{split}-{config.fingerprint({**reading, 'tokenizer': identity, 'seed': seed})}"
        if not artifact.is_complete(shard_folder):
            receipt = Receipt()
            facts_of_reading: dict[str, Any] = {}
            with artifact.staged(
                shard_folder, "shards", parents={"tokenizer": identity}, made_from=reading, reading=facts_of_reading
            ) as staging:
                documents = _split(corpus, receipt, seed, split == "validation")
                shards.write(documents, loaded, staging, on_documents=_announcer(split, quiet))
                facts_of_reading["receipt"] = receipt.summary()
            if receipt.rejects:
                first = receipt.summary()["examples"][0]
                print(f"prepare: {receipt.rejects:,} rows could not be read; the first: {first}", file=sys.stderr)
        else:
            artifact.verify(shard_folder, "shards")
        opened[split] = shards.Shards(shard_folder)
        parents[split] = artifact.identity(shard_folder)
        facts[split] = opened[split].counts
    return Prepared(loaded, vocabulary_of(loaded), opened["train"], opened["validation"], parents, facts)


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
