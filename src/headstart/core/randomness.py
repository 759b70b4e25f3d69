"""Order and noise as pure functions of (seed, epoch, index, purpose).

Randomness is a pure function of (seed, epoch, index, purpose): nothing draws from a global generator or from the state
of a worker. Code that needs random numbers asks here, with the identity of the sample and a word for the purpose, and
gets the same numbers in any process, at any world size, before and after a resume.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_MASK_64 = (1 << 64) - 1
_FEISTEL_ROUNDS = 6


@lru_cache(maxsize=4096)
def _key(seed: int, epoch: int, purpose: str) -> npt.NDArray[np.uint64]:
    digest = hashlib.blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


class _NoEntropy(ISeedSequence):
    """Seeds with zeros: even if a key follows, numpy's Philox first asks the operating system for entropy."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return np.zeros(n_words, dtype)


_NO_ENTROPY: Any = _NoEntropy()
_INITIAL_STATE: dict[str, Any] = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, np.uint64), "buffer_pos": 4,
    "has_uint32": 0, "uinteger": 0,
}  # fmt: skip


def generator(seed: int, epoch: int, index: int, purpose: str) -> np.random.Generator:
    """Return a counter-based generator for one sample and one purpose.

    The key is derived from (seed, epoch, purpose). The sample's index is the high word of Philox's counter, so the
    streams of two samples never overlap.
    """
    philox = np.random.Philox(_NO_ENTROPY)
    counter = np.array([0, 0, 0, index & _MASK_64], np.uint64)
    state: Any = _INITIAL_STATE | {"state": {"counter": counter, "key": _key(seed, epoch, purpose)}}
    philox.state = state
    return np.random.Generator(philox)


def integer(seed: int, epoch: int, index: int, purpose: str) -> int:
    """Return one 63-bit integer, for libraries that need a seed (torch, scikit-learn)."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fraction(text: str, seed: int, purpose: str) -> float:
    """Return a number in [0, 1) that depends only on a text: such splits are stable when a corpus grows."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=_salt(seed, purpose)).digest()
    return int.from_bytes(digest, "little") / 2**64


def _salt(seed: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()


def permute(
    positions: npt.ArrayLike, length: int, seed: int, epoch: int, purpose: str = "order"
) -> npt.NDArray[np.int64]:
    """Return the values of a permutation of [0, length) at some positions, without storing the permutation.

    Algorithm:
        A Feistel network over the next even power of two; values outside the range are mapped again (cycle walking).

    Properties:
        A resumed run needs no state except the number of samples consumed.
    """
    values = np.atleast_1d(np.asarray(positions, dtype=np.uint64)).copy()
    if length <= 0:
        raise ValueError(f"length is {length}; it must be positive")
    if values.size and int(values.max()) >= length:
        raise ValueError(f"position {int(values.max())} is outside [0, {length})")
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = generator(seed, epoch, 0, purpose).integers(0, 2**63, size=_FEISTEL_ROUNDS, dtype=np.uint64)
    values = _feistel(values, half_bits, keys)
    outside = values >= length
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = values >= length
    return values.astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], half_bits: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    shift, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & low
    for key in keys:
        left, right = right, left ^ (mix_bits(right ^ key) & low)
    return (left << shift) | right


def mix_bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit words (the finalizer of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
