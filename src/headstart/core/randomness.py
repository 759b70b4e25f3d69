"""Order and noise as pure functions of (seed, epoch, index, purpose).

Nothing in Headstart draws from a global or a worker's generator. Whoever needs chance asks here, with
the identity of the sample and a word for the purpose, and gets the same numbers in any process, at any
world size, before and after a resume.
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
    """Seeds with noughts: given a key, numpy's Philox asks the system for entropy all the same, and discards it."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return np.zeros(n_words, dtype)


_NO_ENTROPY: Any = _NoEntropy()
_NOTHING_DRAWN: dict[str, Any] = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, np.uint64), "buffer_pos": 4,
    "has_uint32": 0, "uinteger": 0,
}  # fmt: skip


def generator(seed: int, epoch: int, index: int, purpose: str) -> np.random.Generator:
    """Return a counter-based generator for one sample and one purpose.

    The key is derived from (seed, epoch, purpose); the sample's index is the high word of Philox's
    counter, so the streams of two samples never overlap.
    """
    philox = np.random.Philox(_NO_ENTROPY)
    counter = np.array([0, 0, 0, index & _MASK_64], np.uint64)
    state: Any = _NOTHING_DRAWN | {"state": {"counter": counter, "key": _key(seed, epoch, purpose)}}
    philox.state = state
    return np.random.Generator(philox)


def integer(seed: int, epoch: int, index: int, purpose: str) -> int:
    """Return one 63-bit integer, for libraries that want a seed of their own (torch, scikit-learn)."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fraction(text: str, seed: int, purpose: str) -> float:
    """Return a number in [0, 1) that depends on a text alone: for splits that stay when a corpus grows."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=_salt(seed, purpose)).digest()
    return int.from_bytes(digest, "little") / 2**64


def _salt(seed: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()


def permute(
    positions: npt.ArrayLike, length: int, seed: int, epoch: int, purpose: str = "order"
) -> npt.NDArray[np.int64]:
    """Map positions in [0, length) to a permutation of [0, length), without ever holding the permutation.

    A Feistel network over the next even power of two, cycle-walked back into the range. A resumed run
    therefore needs no state but the number of samples consumed.
    """
    values = np.atleast_1d(np.asarray(positions, dtype=np.uint64)).copy()
    if length <= 0:
        raise ValueError(f"length is {length}; it must be positive")
    if values.size and int(values.max()) >= length:
        raise ValueError(f"position {int(values.max())} lies outside [0, {length})")
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
        left, right = right, left ^ (_mix(right ^ key) & low)
    return (left << shift) | right


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit words (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
