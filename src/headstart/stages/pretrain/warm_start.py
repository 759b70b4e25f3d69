"""Starts the embeddings of new networks from token vectors that are counted from the corpus, before any gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from headstart.backbones.start import embedding_width, start_embeddings, start_output
from headstart.core import artifact, config
from headstart.core.contracts import Objective
from headstart.core.errors import RecipeError
from headstart.stages.pretrain.prepare import Prepared
from headstart.stages.pretrain.recipe import WarmStart
from headstart.tokens import cooccurrence


def warm_start(
    settings: WarmStart, module: torch.nn.Module, objective: Objective, prepared: Prepared, folder: Path
) -> None:
    """Set the embeddings and output biases of all trained networks; the counted vectors are saved in `folder`."""
    vocab_size = prepared.vocabulary.size
    networks = objective.parts(module).values()
    widths = {width for network in networks if (width := embedding_width(network, vocab_size)) is not None}
    if not widths:
        raise RecipeError(
            "warm_start is set, but the network has no table of token embeddings",
            allowed="A network that reads characters composes its token vectors",
            do="Remove warm_start",
        )
    vectors = {width: _vectors(settings, prepared, width, folder) for width in widths}
    total = sum(corpus.train.tokens for corpus in prepared.corpora)
    counts = (prepared.unigram_frequencies * total).astype(np.int64)
    for network in networks:
        width = embedding_width(network, vocab_size)
        if width is not None:
            start_embeddings(network, vectors[width])
            start_output(network, counts)


def _vectors(settings: WarmStart, prepared: Prepared, width: int, folder: Path) -> cooccurrence.Floats:
    """Return the vectors of one width (vocabulary, width), counted unless the folder has them."""
    shares = [corpus.share for corpus in prepared.corpora]
    made_from = {**settings.model_dump(), "parents": prepared.parents, "width": width, "shares": shares}
    target = folder / f"vectors-{config.fingerprint(made_from)}"

    def count(staging: artifact.Staging) -> None:
        shards = [corpus.train for corpus in prepared.corpora]
        vectors = cooccurrence.vectors(shards, shares, width, settings.window, settings.limit_tokens)
        np.save(staging / "vectors.npy", vectors)

    artifact.make_once(target, "vectors", count, made_from=made_from)
    artifact.verify(target, "vectors")
    return np.load(target / "vectors.npy", allow_pickle=False)  # type: ignore[no-any-return]
