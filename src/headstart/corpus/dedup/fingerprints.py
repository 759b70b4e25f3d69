"""The fingerprint of a document: its normalized text, the hash of that, and the bands of its MinHash signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.core.randomness import mix_bits
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes
from headstart.corpus.parts.steps import as_array

if TYPE_CHECKING:
    from daft import Expression

_LETTER = r"[\p{L}\p{N}\p{M}]"
_UNSPACED = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"
_BASE = np.uint64(0xC2B2AE3D27D4EB4F)


class SignatureConfig(Section):
    """MinHash signatures; two documents are compared if all rows of one band are equal."""

    words: int = Field(5, ge=1, description="words in a shingle")
    bands: int = Field(14, ge=1, le=256, description="bands in a signature; FineWeb used 14 of 8 rows")
    rows: int = Field(8, ge=1, le=64, description="hashes in a band; more of them save comparisons in a large corpus")


def normalize(text: Expression) -> Expression:
    """Return letters and digits in lower case with one space between words.

    In scripts without spaces, each character is a word. A text without letters and digits stays as it is; otherwise all
    such texts would be equal.
    """
    from daft.functions import lower, regexp, regexp_replace, strip, when

    plain = regexp_replace(lower(text), r"[^\p{L}\p{N}\p{M}]+", " ")
    plain = strip(regexp_replace(regexp_replace(plain, _UNSPACED, " $1 "), " {2,}", " "))
    return when(regexp(text, _LETTER), plain).otherwise(strip(text))


def fingerprints(normals: pa.ChunkedArray, config: SignatureConfig) -> pa.Table:
    """Return two hashes of each normalized text, which form a key of 128 bits, and its bands as a list of numbers."""
    from daft import col
    from daft.functions import hash as hashed
    from daft.functions import minhash

    hashes = evaluate(
        pa.table({"normal": normals}),
        {
            "key": hashed(col("normal"), hash_function="xxhash3_64"),
            "second_key": hashed(col("normal"), hash_function="xxhash3_64", seed=1),
            "signature": minhash(
                col("normal"),
                num_hashes=config.bands * config.rows,
                ngram_size=config.words,
                hash_function="xxhash3_64",
            ),
        },
    )
    bands = _bands(hashes["signature"], config)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(bands.ravel()), config.bands)
    return pa.table({"key": hashes["key"], "second_key": hashes["second_key"], "bands": lists})


def _bands(signatures: pa.ChunkedArray, config: SignatureConfig) -> Hashes:
    """Combine the rows of each band into one number, which differs between bands for equal rows."""
    hashes = as_array(signatures).flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
    rows = hashes.reshape(-1, config.bands, config.rows)
    combined = np.broadcast_to(np.arange(1, config.bands + 1, dtype=np.uint64), rows.shape[:2]).copy()
    for row in range(config.rows):
        combined = combined * _BASE + rows[:, :, row]
    return mix_bits(combined)
