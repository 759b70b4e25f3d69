"""Linear CKA: how similar the states of two layers are, whatever rotation and scale they have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstart.stages.probe.hidden.states import States

Grams = npt.NDArray[np.float64]


def unit_grams(states: States) -> Grams:
    """Return for each layer the products of all pairs of words, centered and scaled, shape (layers, words × words).

    Algorithm:
        U-centering: the diagonal is left out and the means are those of the other words, so that the product of two
        such matrices is the unbiased estimate of HSIC. The plain estimate is high for any two layers where words are
        few and dimensions many. Each matrix is scaled to length one.

    Papers: Song et al. 2012, unbiased HSIC; Székely & Rizzo 2014, U-centering
    """
    layers, count, _ = states.shape
    grams = np.empty((layers, count * count))
    for layer, values in enumerate(states):
        centered = values.astype(np.float64) - values.mean(0, dtype=np.float64)
        gram = centered @ centered.T
        np.fill_diagonal(gram, 0.0)
        means = gram.sum(0) / max(1, count - 2)
        gram -= means[:, None] + means[None] - gram.sum() / max(1, (count - 1) * (count - 2))
        np.fill_diagonal(gram, 0.0)
        grams[layer] = gram.ravel() / max(float(np.linalg.norm(gram)), 1e-30)
    return grams


def linear_cka(left: Grams, right: Grams) -> Grams:
    """Return the similarity of each layer of `left` with each layer of `right`, shape (layers, layers).

    It is 1 for states that differ by a rotation and a scale, and about 0 for independent ones. Both sides have the
    same words in the same order.

    Paper: Kornblith et al. 2019, Similarity of Neural Network Representations Revisited
    """
    similarities: Grams = left @ right.T
    return similarities
