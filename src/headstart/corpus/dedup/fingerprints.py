"""What tells duplicates: a normal form of the text, its hash, and the bands of its MinHash signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.shingles import Hashes, mixed
from headstart.corpus.parts.steps import flat

if TYPE_CHECKING:
    from daft import Expression

_TELLING = r"[\p{L}\p{N}\p{M}]"
_UNSPACED = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"
_BASE = np.uint64(0xC2B2AE3D27D4EB4F)


class SignatureConfig(Section):
    """How MinHash signatures are made: two documents are compared where all rows of one band agree."""

    words: int = Field(5, ge=1, description="words in a shingle")
    bands: int = Field(14, ge=1, le=256, description="bands of a signature; FineWeb used 14 of 8 rows")
    rows: int = Field(8, ge=1, le=64, description="hashes in a band; more of them spare comparisons in a large corpus")


def normal(text: Expression) -> Expression:
    """Return letters and digits in lower case, words a blank apart; in scripts without blanks each sign is a word.

    A text without letters and digits is its own normal form: else all of them were one and the same.
    """
    from daft.functions import lower, regexp, regexp_replace, strip, when

    plain = regexp_replace(lower(text), r"[^\p{L}\p{N}\p{M}]+", " ")
    plain = strip(regexp_replace(regexp_replace(plain, _UNSPACED, " $1 "), " {2,}", " "))
    return when(regexp(text, _TELLING), plain).otherwise(strip(text))


def fingerprints(normals: pa.ChunkedArray, config: SignatureConfig) -> pa.Table:
    """Return for each normal form two hashes, which make a key of 128 bits, and its bands as a list of numbers."""
    from daft import col
    from daft.functions import hash as hashed
    from daft.functions import minhash

    made = evaluate(
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
    bands = _bands(made["signature"], config)
    listed = pa.FixedSizeListArray.from_arrays(pa.array(bands.ravel()), config.bands)
    return pa.table({"key": made["key"], "second_key": made["second_key"], "bands": listed})


def _bands(signatures: pa.ChunkedArray, config: SignatureConfig) -> Hashes:
    """Fold the rows of each band into one number, which differs from band to band for the same rows."""
    hashes = flat(signatures).flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
    rows = hashes.reshape(-1, config.bands, config.rows)
    folded = np.broadcast_to(np.arange(1, config.bands + 1, dtype=np.uint64), rows.shape[:2]).copy()
    for row in range(config.rows):
        folded = folded * _BASE + rows[:, :, row]
    return mixed(folded)
