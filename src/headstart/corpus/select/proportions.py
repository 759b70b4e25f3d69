"""The fraction of each source and language that is kept: by weight, or by size with small languages boosted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import Field

from headstart.core import randomness
from headstart.core.config import Section
from headstart.core.randomness import mix_bits
from headstart.corpus.parts.shingles import Hashes

Group = tuple[str, str]
"""A source and a language."""


class MixtureConfig(Section):
    """The proportions in which documents are kept."""

    exponent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="keep a language of n characters in proportion to n^exponent, within each source if sources have "
        "weights; XLM-R used 0.3; the temperature is 1 / exponent; null keeps the natural proportions",
    )


def rates(
    sizes: Mapping[Group, int], weights: Mapping[str, float | None], exponent: float | None
) -> dict[Group, float]:
    """Return the fraction of each group's documents to keep, so that proportions hold and nothing is repeated.

    With weights, each source gets its weight and the exponent applies to the languages inside each source. Without
    weights, it applies to the languages of the whole corpus, whatever their sources. The group that is scarcest
    relative to its target is kept whole, and the others in proportion to it.
    """
    nonempty = {group: size for group, size in sizes.items() if size}
    power = 1.0 if exponent is None else exponent
    targets: dict[Group, float] = {}
    if all(weight is not None for weight in weights.values()):
        for (source, language), size in nonempty.items():
            total = sum(other**power for (owner, _), other in nonempty.items() if owner == source)
            targets[source, language] = (weights[source] or 0.0) * size**power / total
    else:
        languages: Counter[str] = Counter()
        for (_, language), size in nonempty.items():
            languages[language] += size
        targets = {group: size * languages[group[1]] ** (power - 1) for group, size in nonempty.items()}
    scale = min((size / targets[group] for group, size in nonempty.items()), default=1.0)
    return {group: min(1.0, targets[group] * scale / size) if size else 1.0 for group, size in sizes.items()}


def uniform(keys: Hashes, seed: int, purpose: str) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each document, from its key alone, so that choices persist as a corpus grows."""
    salt = np.uint64(randomness.integer(seed, 0, 0, purpose))
    return mix_bits(mix_bits(keys ^ salt) + salt) / np.float64(2**64)
