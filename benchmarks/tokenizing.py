"""Tokenization on all cores: Headstart's token shards against the two functions that run_mlm maps over its data set.

run_mlm's functions tokenize a thousand documents at a time and cut rows from the concatenated lists. They run in
memory here, which is to their advantage, because `datasets` would also write to disk. Headstart also detects sentences
and writes everything to disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pretraining import prepared_of
from side_by_side import arguments, in_turns, report
from texts import megabytes_of_wikipedia
from transformers import PreTrainedTokenizerFast

from headstart.core import config
from headstart.core.data import Document
from headstart.evaluation.memory import PeakMemory
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens import shards

LENGTH = 128
BATCH = 1000
"""Documents per batch of `datasets.map`."""


def in_shards(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> int:
    """Write Headstart's shards and return their number of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        counts = shards.write((Document("", text) for text in documents), tokenizer, Path(folder))
    return int(counts["tokens"])


def as_run_mlm(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> int:
    """Tokenize and group as run_mlm does, and return the number of tokens in the rows."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return sum(len(rows) * LENGTH for rows in _grouped(documents, tokenizer))


def _grouped(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[list[int]]]:
    waiting = iter(documents)
    while batch := list(islice(waiting, BATCH)):
        encoded: Any = tokenizer(batch, return_special_tokens_mask=True)
        joined = {name: list(chain(*encoded[name])) for name in encoded}
        whole = len(joined["input_ids"]) // LENGTH * LENGTH
        cut = {name: [ids[at : at + LENGTH] for at in range(0, whole, LENGTH)] for name, ids in joined.items()}
        yield cut["input_ids"]


def main() -> None:
    """Measure both alternately in megabytes per second, and Headstart's memory; print one line of JSON."""
    options = arguments(__doc__ or "", repetitions=3)
    tokenizer = prepared_of(config.load("recipes/objectives/mini.yaml", PretrainRecipe)).tokenizer
    documents = list(megabytes_of_wikipedia(1 if options.quick else 24))
    size = sum(len(text.encode()) for text in documents) / 1e6

    def timed(function: Any) -> float:
        start = time.perf_counter()
        function(documents, tokenizer)
        return size / (time.perf_counter() - start)

    memory = PeakMemory()
    before = memory.megabytes()
    in_shards(documents, tokenizer)
    grown = memory.stop() - before
    found = in_turns(options.repetitions, ours=lambda: timed(in_shards), theirs=lambda: timed(as_run_mlm))
    report("tokenizing, against run_mlm's two functions", found["ours"], found["theirs"], 1.0, "MB/s",
           megabytes=round(size, 1), our_memory_mb=round(grown))  # fmt: skip


if __name__ == "__main__":
    main()
