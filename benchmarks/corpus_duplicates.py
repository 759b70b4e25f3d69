"""Near-duplicate detection against brute force and theory: 5,000 documents, a fifth of them changed copies.

Brute force is exact: an index over all shingles gives the Jaccard similarity of every pair with a common shingle. Pairs
of documents measure the detection curve. Families of 2 to 50 copies, and chains in which each document differs slightly
from the previous one, measure how many similar pairs are both kept, and whether a document is dropped for a dissimilar
one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = [f"word{number}" for number in range(20_000)]
SHARES = (0, 0.004, 0.008, 0.013, 0.017, 0.025, 0.033, 0.04, 0.05, 0.06, 0.08)


def planted(documents: int, seed: int) -> list[str]:
    """Return documents of 240 words, a fifth of which are copies with some words replaced."""
    rng = random.Random(seed)
    originals = [[rng.choice(WORDS) for _ in range(240)] for _ in range(documents * 4 // 5)]
    texts = [" ".join(words) for words in originals]
    for number in range(documents - len(texts)):
        words = list(originals[number * 3 % len(originals)])
        for place in rng.sample(range(len(words)), round(rng.choice(SHARES) * len(words))):
            words[place] = rng.choice(WORDS)
        texts.append(" ".join(words))
    return texts


def families(documents: int, seed: int) -> list[str]:
    """Return documents in families: copies of one original, and chains of successive changes."""
    rng, texts = random.Random(seed), list[str]()

    def changed(words: list[str], share: float) -> list[str]:
        places = set(rng.sample(range(len(words)), round(share * len(words))))
        return [rng.choice(WORDS) if place in places else word for place, word in enumerate(words)]

    while len(texts) < documents:
        words = [rng.choice(WORDS) for _ in range(240)]
        is_chain, texts = rng.random() < 0.3, [*texts, " ".join(words)]
        for _ in range(rng.choice((1, 2, 5, 10, 49))):
            copy = changed(words, rng.choice((0.004, 0.008, 0.013)))
            texts.append(" ".join(copy))
            words = copy if is_chain else words
    rng.shuffle(texts)
    return texts[:documents]


def brute(texts: list[str], n: int = 5) -> dict[tuple[int, int], float]:
    """Return the exact Jaccard similarity of every pair where it is at least 0.3."""
    sets, index = [], defaultdict(list)
    for number, text in enumerate(texts):
        words = text.split()
        sets.append({tuple(words[i : i + n]) for i in range(len(words) - n + 1)})
        for shingle in sets[-1]:
            index[shingle].append(number)
    common: Counter[tuple[int, int]] = Counter()
    for members in index.values():
        common.update(combinations(members, 2))
    found = {pair: count / (len(sets[pair[0]]) + len(sets[pair[1]]) - count) for pair, count in common.items()}
    return {pair: value for pair, value in found.items() if value >= 0.3}


def dropped(texts: list[str], threshold: float, folder: Path) -> dict[int, int]:
    """Run Headstart's deduplication; return the kept document for each dropped one."""
    from daft import col

    from headstart.corpus.dedup import duplicates
    from headstart.corpus.dedup.fingerprints import fingerprints, normalize
    from headstart.corpus.parts import engine

    config = duplicates.DuplicatesConfig.model_validate({"near": {"jaccard": threshold}})
    assert config.near is not None
    doc = pa.array(np.arange(len(texts)))
    table = pa.table({"doc": doc, "text": pa.array(texts, pa.large_string())})
    marks = fingerprints(engine.evaluate(table, {"n": normalize(col("text"))})["n"], config.near.signature)
    columns = {"doc": doc, "characters": pa.array([len(text) for text in texts])}
    made = pa.table({**columns, **{name: marks[name] for name in marks.column_names}})
    for kind, rows in (("documents", table), ("fingerprints", made)):
        (folder / "clean" / kind).mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / "clean" / kind / "part-00000.parquet")
    duplicates.find(folder / "clean", folder / "duplicates", config)
    rows = pq.read_table(folder / "duplicates" / "found").to_pylist()
    return {row["doc"]: row["kept"] for row in rows}


def pairs_of(found: dict[int, int]) -> set[tuple[int, int]]:
    """Return each dropped document with the one it was dropped for, the smaller number first."""
    return {(min(pair), max(pair)) for pair in found.items()}


def of_families(documents: int, folder: Path) -> dict[str, Any]:
    """Return how many similar pairs were both kept, and how many documents were dropped for a dissimilar one."""
    texts = families(documents, seed=1)
    true, gone = brute(texts), dropped(texts, 0.8, folder)
    alike = [pair for pair, s in true.items() if s >= 0.8]
    both = sum(one not in gone and other not in gone for one, other in alike)
    unlike = sum(true.get(pair, 0.0) < 0.8 for pair in pairs_of(gone))
    return {"documents": len(texts), "dropped": len(gone), "alike pairs": len(alike), "of which both stayed": both,
            "dropped for an unlike one": unlike}  # fmt: skip


def main() -> None:
    """Print the curve, recall and precision as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    from headstart.corpus.dedup.fingerprints import SignatureConfig
    from headstart.corpus.parts import engine

    engine.start(engine.EngineConfig())
    texts = planted(500 if options.quick else options.documents, seed=0)
    true = brute(texts)
    with tempfile.TemporaryDirectory() as folder:
        # The curve uses all candidates; recall and precision use the threshold 0.8.
        linked = pairs_of(dropped(texts, 0.3, Path(folder) / "all"))
        strict = pairs_of(dropped(texts, 0.8, Path(folder) / "strict"))
        many = of_families(len(texts), Path(folder) / "families")
    config, curve = SignatureConfig(), list[dict[str, Any]]()
    for low in np.arange(0.5, 1.0, 0.1):
        inside = [(pair, s) for pair, s in true.items() if low <= s < low + 0.1 or (low > 0.85 and s == 1)]
        if inside:
            theory = [1 - (1 - s**config.rows) ** config.bands for _, s in inside]
            found = [pair in linked for pair, _ in inside]
            rates = {"found": round(float(np.mean(found)), 3), "theory": round(float(np.mean(theory)), 3)}
            curve.append({"jaccard": f"{low:.1f} to {low + 0.1:.1f}", "pairs": len(inside), **rates})
    alike = {pair for pair, s in true.items() if s >= 0.8}
    hits = alike & strict
    result = {
        "name": "near-duplicates against brute force",
        "ours": round(len(hits) / len(alike), 4),
        "theirs": 1.0,
        "ratio": round(len(hits) / len(alike), 4),
        "goal": 0.9,
        "unit": "recall at Jaccard 0.8",
        "precision": round(len(hits) / max(1, len(strict)), 4),
        "documents": len(texts),
        "pairs": len(alike),
        "curve": curve,
        "families": many,
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
