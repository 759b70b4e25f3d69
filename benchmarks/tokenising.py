"""Text into rows of tokens on all cores: our shards against the two functions that run_mlm maps over its data set.

Theirs calls the tokenizer on a thousand documents at a time and cuts rows out of the joined lists, in memory, which is
in its favour: `datasets` would write them to disk too. Ours finds sentences besides and writes everything.
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
"""Documents that `datasets.map` hands on at a time."""


def in_shards(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> int:
    """Write our shards and return how many tokens they hold."""
    with tempfile.TemporaryDirectory() as folder:
        counts = shards.write((Document("", text) for text in documents), tokenizer, Path(folder))
    return int(counts["tokens"])


def as_run_mlm(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> int:
    """Tokenise and group as run_mlm does, and return how many tokens the rows hold."""
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
    """Measure both in turns, in megabytes a second, and our memory, one line of JSON."""
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
    report("tokenising, against run_mlm's two functions", found["ours"], found["theirs"], 1.0, "MB/s",
           megabytes=round(size, 1), our_memory_mb=round(grown))  # fmt: skip


if __name__ == "__main__":
    main()
