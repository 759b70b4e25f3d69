"""A head start for new networks: token vectors counted from the corpus, before any gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from headstart.backbones.start import embedding_width, start_embeddings, start_output
from headstart.core import artifact, config
from headstart.core.config import Section
from headstart.core.contracts import Objective
from headstart.core.errors import RecipeError
from headstart.stages.pretrain.prepare import Prepared
from headstart.tokens import cooccurrence


class WarmStart(Section):
    """Start the embeddings from co-occurrence counts and the output's bias from frequencies (Levy & Goldberg 2014)."""

    window: int = Field(5, ge=1, le=50, description="tokens to either side that count as near")
    limit_tokens: int = Field(100_000_000, ge=1000, description="tokens counted at most, over all corpora")


def warm_start(
    settings: WarmStart, module: torch.nn.Module, objective: Objective, prepared: Prepared, folder: Path
) -> None:
    """Set embeddings and output biases of all networks that are trained; the counted vectors are kept in `folder`."""
    tokens = prepared.vocabulary.size
    parts = objective.parts(module).values()
    widths = {width for part in parts if (width := embedding_width(part, tokens)) is not None}
    if not widths:
        raise RecipeError(
            "warm_start is set, and the network has no table of token vectors",
            allowed="A network that reads characters composes its vectors",
            do="Leave out warm_start",
        )
    vectors = {width: _vectors(settings, prepared, width, folder) for width in widths}
    read = np.sum([one.share * one.train.unigrams / one.train.tokens for one in prepared.corpora], axis=0)
    counts = (read * sum(one.train.tokens for one in prepared.corpora)).astype(np.int64)
    for part in parts:
        width = embedding_width(part, tokens)
        if width is not None:
            start_embeddings(part, vectors[width])
            start_output(part, counts)


def _vectors(settings: WarmStart, prepared: Prepared, width: int, folder: Path) -> cooccurrence.Floats:
    """Return the vectors of one width, counted if they do not lie in the folder from before."""
    made_from = {**settings.model_dump(), "parents": prepared.parents, "width": width}
    made_from["shares"] = [one.share for one in prepared.corpora]
    home = folder / f"vectors-{config.fingerprint(made_from)}"

    def count(staging: Path) -> None:
        shards, shares = [one.train for one in prepared.corpora], [one.share for one in prepared.corpora]
        found = cooccurrence.vectors(shards, shares, width, settings.window, settings.limit_tokens)
        np.save(staging / "vectors.npy", found)

    artifact.make_once(home, "vectors", count, made_from=made_from)
    artifact.verify(home, "vectors")
    return np.load(home / "vectors.npy", allow_pickle=False)  # type: ignore[no-any-return]
