"""Metrics of language modeling. A prediction is a text's negative log-likelihood: `nats`, over `tokens` and `bytes`.

The text itself is predicted, so gold values are not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.evaluation.metrics import Floats, Sums, metric, plain, same_length

_LARGEST = 700.0
"""exp of more overflows; use bits per byte to compare models this bad."""


def _counts(unit: str) -> Callable[[Sequence[Any], Sequence[Any]], Floats]:
    def counts(gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
        texts = plain(predicted)
        same_length([plain(gold), texts])
        return np.array([[text["nats"], text[unit]] for text in texts], dtype=np.float64)

    return counts


def _perplexity(sums: Floats) -> Floats:
    nats: Floats = np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] > 0)
    return np.exp(np.minimum(nats, _LARGEST))


def _bits_per_byte(sums: Floats) -> Floats:
    bits: Floats = np.divide(sums[:, 0], math.log(2) * sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] > 0)
    return bits


@metric("likelihood", sums=Sums(_counts("tokens"), _perplexity), lower_is_better=True, scale=1)
def perplexity(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Exponential of the mean loss per token; it compares only models with the same tokenizer.

    Paper: Jelinek et al. 1977
    """
    return float(_perplexity(_counts("tokens")(gold, predicted).sum(axis=0, keepdims=True))[0])


@metric("likelihood", sums=Sums(_counts("bytes"), _bits_per_byte), lower_is_better=True, scale=1)
def bits_per_byte(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Bits that a model needs per byte of text; it compares models with different tokenizers.

    A tokenizer that drops information (lower case, unknown words) leaves less to predict, which lowers the value.
    Paper: Shannon 1951; Gao et al. 2020, The Pile
    """
    return float(_bits_per_byte(_counts("bytes")(gold, predicted).sum(axis=0, keepdims=True))[0])
