"""Embedding 20,000 sentences with all-MiniLM-L6-v2: Headstart against sentence-transformers, in the same format."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import torch
from finetuning import minilm
from sentence_transformers import SentenceTransformer
from side_by_side import arguments, in_turns, number_format, report
from texts import wikipedia

from headstart.stages.search.embedder import Embedder
from headstart.training import precision


def sentences(count: int) -> list[str]:
    """Return the first `count` sentences of at least twenty characters."""
    found: list[str] = []
    for text in wikipedia():
        found += [part for part in re.split(r"(?<=[.!?])\s+", text) if len(part) >= 20]
        if len(found) >= count:
            break
    return found[:count]


def main() -> None:
    """Measure both and the agreement of their vectors; print one line of JSON."""
    options = arguments(__doc__ or "", repetitions=3)
    texts = sentences(200 if options.quick else 20_000)
    folder = minilm()
    ours = Embedder(folder, number_format())
    theirs = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": precision.dtype(number_format())})
    vectors: dict[str, torch.Tensor] = {}

    def encoded() -> torch.Tensor:
        return theirs.encode(texts, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False).float()

    def timed(name: str, embed: Callable[[], torch.Tensor | np.ndarray]) -> float:
        start = time.perf_counter()
        vectors[name] = torch.as_tensor(embed())
        return len(texts) / (time.perf_counter() - start)

    ours.vectors(texts[:64])
    theirs.encode(texts[:64], show_progress_bar=False)
    found = in_turns(
        options.repetitions,
        ours=lambda: timed("ours", lambda: ours.vectors(texts)),
        theirs=lambda: timed("theirs", encoded),
    )
    cosines = torch.nn.functional.cosine_similarity(vectors["ours"], vectors["theirs"])
    report(f"embedding {len(texts):,} sentences, MiniLM, against sentence-transformers in {number_format()}",
           found["ours"], found["theirs"], 1.2, "sentences/s", least_cosine=round(float(cosines.min()), 5))  # fmt: skip


if __name__ == "__main__":
    main()
