"""Corruption of rows by each objective, in tokens per second of one core, against the tokens that one device trains on.

Time of the processor counts, so that other work on the machine does not. The rows have 512 tokens and are in memory.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import arguments, report
from transformers import PreTrainedTokenizerFast

from headstart.core import registry
from headstart.core.data import Document, Sample
from headstart.tokens import shards, tokenizer
from headstart.tokens.rows import cut
from headstart.tokens.settings import TokenizerConfig

LENGTH, ROWS = 512, 32
NEEDED = 250_000.0
"""Tokens per second of a base encoder (110 M parameters, 6.6e8 FLOPs a token) on a device at 1.65e14 FLOP/s."""
VARIANTS = {"masked_lm whole words": {"name": "masked_lm", "whole_words": True}}


def text_shards(folder: Path) -> tuple[PreTrainedTokenizerFast, shards.Shards]:
    """Tokenize the text of the quickstart."""
    text = gzip.decompress(Path("recipes/quickstart/data/kjv.txt.gz").read_bytes()).decode()
    encoder = tokenizer.train_on([text], TokenizerConfig(vocab_size=8000))
    documents = (Document(str(i), text[i : i + 20_000]) for i in range(0, len(text), 20_000))
    shards.write(documents, encoder, folder)
    return encoder, shards.Shards(folder)


def seconds_per_token(settings: dict, encoder: PreTrainedTokenizerFast, text: shards.Shards, least: float) -> float:
    """Return the time of the processor per token, corrupting batches of new rows for at least `least` seconds."""
    entry = registry.resolve("objectives", settings["name"])
    objective = entry(entry.Config(**settings))
    vocabulary = tokenizer.add_special(encoder, objective.special_tokens())
    source = cut(text, vocabulary, objective.row_shape(LENGTH))
    batches = [
        source.rows([Sample(0, (first + i) % len(source)) for i in range(ROWS)]) for first in range(0, 8 * ROWS, ROWS)
    ]
    objective.corrupt(batches[0], vocabulary, 0)
    tokens, start = 0, time.process_time()
    while time.process_time() - start < least:
        for rows in batches:
            objective.corrupt(rows, vocabulary, 0)
            tokens += rows.ids.size
    return (time.process_time() - start) / tokens


def main() -> None:
    """Print one line of JSON per objective."""
    options = arguments(__doc__ or "", repetitions=3)
    cases = {name: {"name": name} for name in registry.names("objectives")} | VARIANTS
    with tempfile.TemporaryDirectory() as folder:
        encoder, text = text_shards(Path(folder))
        for name, settings in cases.items():
            try:
                rates = [
                    1 / seconds_per_token(settings, encoder, text, 0.01 if options.quick else 1.0)
                    for _ in range(options.repetitions)
                ]
            except (TypeError, ValueError, KeyError) as error:
                print(f"{name}: {type(error).__name__} {error}", file=sys.stderr)
                continue
            report(f"corruption by {name}", rates, [NEEDED], 4.0, "tokens/s a core")


if __name__ == "__main__":
    main()
