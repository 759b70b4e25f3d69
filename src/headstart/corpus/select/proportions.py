"""How much of each source and language goes into the corpus: by weight, and by size with small languages lifted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import Field

from headstart.core import randomness
from headstart.core.config import Section
from headstart.corpus.parts.shingles import Hashes, mixed

Group = tuple[str, str]
"""A source and a language."""


class MixtureConfig(Section):
    """In what proportions documents are kept."""

    exponent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="a language of n characters is kept in proportion to n^exponent, within each source where sources "
        "have weights; XLM-R used 0.3; the temperature is 1 / exponent; as they come where none is given",
    )


def rates(
    sizes: Mapping[Group, int], weights: Mapping[str, float | None], exponent: float | None
) -> dict[Group, float]:
    """Return the share of each group's documents to keep so that proportions hold and nothing is repeated.

    Sources with weights get their weights, and languages are lifted inside each; without weights they are lifted over
    the whole, whatever sources they come from. The group that there is least of, by what it should be, is kept whole,
    and the others in proportion to it.
    """
    full = {group: size for group, size in sizes.items() if size}
    power = 1.0 if exponent is None else exponent
    wanted: dict[Group, float] = {}
    if all(weight is not None for weight in weights.values()):
        for (source, language), size in full.items():
            inside = sum(other**power for (owner, _), other in full.items() if owner == source)
            wanted[source, language] = (weights[source] or 0.0) * size**power / inside
    else:
        spoken: Counter[str] = Counter()
        for (_, language), size in full.items():
            spoken[language] += size
        wanted = {group: size * spoken[group[1]] ** (power - 1) for group, size in full.items()}
    scale = min((size / wanted[group] for group, size in full.items()), default=1.0)
    return {group: min(1.0, wanted[group] * scale / size) if size else 1.0 for group, size in sizes.items()}


def chances(keys: Hashes, seed: int, purpose: str) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each document, by its key alone: for choices that stay when a corpus grows."""
    salt = np.uint64(randomness.integer(seed, 0, 0, purpose))
    return mixed(mixed(keys ^ salt) + salt) / np.float64(2**64)
