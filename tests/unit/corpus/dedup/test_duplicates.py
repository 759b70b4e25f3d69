"""Duplicates against brute force: which documents are found, which are kept, and the theoretical recall of LSH."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.dedup.candidates import groups, jaccard
from headstart.corpus.dedup.fingerprints import SignatureConfig, fingerprints
from headstart.corpus.parts.shingles import shingle_sets, words_of

WORDS = [f"word{number}" for number in range(20_000)]


def text(rng: random.Random, length: int = 120) -> list[str]:
    return [rng.choice(WORDS) for _ in range(length)]


def replaced(words: list[str], fraction: float, rng: random.Random) -> list[str]:
    """Return the words with a random fraction of them replaced."""
    out = list(words)
    for i in rng.sample(range(len(words)), round(fraction * len(words))):
        out[i] = rng.choice(WORDS)
    return out


def brute_force_jaccard(one: str, other: str, n: int = 5) -> float:
    left, right = ({tuple(t.split()[i : i + n]) for i in range(len(t.split()) - n + 1)} for t in (one, other))
    return len(left & right) / len(left | right)


def test_jaccard_is_exact() -> None:
    rng = random.Random(0)
    pairs = []
    for fraction in (0, 0.01, 0.02, 0.05, 0.1, 0.3, 1):
        words = text(rng)
        pairs.append((" ".join(words), " ".join(replaced(words, fraction, rng))))
    computed = [jaccard(*shingle_sets(words_of(pa.array(pair)), 5)) for pair in pairs]
    assert computed == pytest.approx([brute_force_jaccard(*pair) for pair in pairs])
    few = shingle_sets(words_of(pa.array(["a b", "a b", "b a", ""])), 5)
    assert [jaccard(few[0], other) for other in few] == [1.0, 1.0, 0.0, 0.0]


def test_exact_near_and_unrelated_documents(in_a_process: Callable[..., Any], tmp_path: Path) -> None:
    rng = random.Random(3)
    words = [text(rng) for _ in range(6)]
    texts = [" ".join(document) for document in words]
    texts += [
        texts[0].upper().replace(" ", ",  "),
        texts[0],
        " ".join([*words[1], "one", "more"]),
        " ".join(words[2][:60]),
    ]
    texts += [" ".join([*words[1], "one", "more", "again"])]
    near = {"jaccard": 0.8, "signature": {"bands": 30, "rows": 4}}
    settings = [{"near": near}, {"near": near, "keep": "longest"}, {"near": None}]
    first, longest, exact = in_a_process(
        "duplicates_in_engine:find", folder=str(tmp_path), texts=texts, settings=settings
    )
    assert {(row["doc"], row["kept"], row["kind"]) for row in first["found"]} == {
        (6, 0, "exact"), (7, 0, "exact"), (8, 1, "near"), (10, 1, "near"),
    }  # fmt: skip
    assert all(row["jaccard"] >= 0.8 for row in first["found"])
    assert {(r["doc"], r["kept"]) for r in longest["found"] if r["kind"] == "near"} == {(1, 10), (8, 10)}
    assert {row["doc"] for row in exact["found"]} == {6, 7}


def versions(rng: random.Random, count: int) -> list[str]:
    """Return a text and `count` later versions, each with one more word changed: the first and last are not similar."""
    words, out = text(rng, 200), list[str]()
    for version in range(count + 1):
        out.append(" ".join(words))
        words[version * 15 % 200] = f"new{version}"
    return out


def test_dropped_documents_are_similar_to_the_kept_one_with_the_stored_jaccard(
    in_a_process: Callable[..., Any], tmp_path: Path
) -> None:
    chain = versions(random.Random(4), 12)
    texts = [*chain, chain[1], chain[7].upper().replace(" ", ",  ")]
    orders = [{}, {"keep": "longest"}]
    for result in in_a_process("duplicates_in_engine:find", folder=str(tmp_path), texts=texts, settings=orders):
        dropped = {row["doc"] for row in result["found"]}
        assert len(dropped) == len(result["found"]) >= 10
        for row in result["found"]:
            one, other = (texts[row[end]].lower().replace(",  ", " ") for end in ("doc", "kept"))
            assert row["kept"] not in dropped
            assert row["jaccard"] == pytest.approx(brute_force_jaccard(one, other)) and row["jaccard"] >= 0.8
            assert (row["kind"] == "exact") == (one == other)


def test_keep_longest_of_exact_copies_and_texts_without_letters_differ(
    in_a_process: Callable[..., Any], tmp_path: Path
) -> None:
    words = " ".join(text(random.Random(6)))
    texts = [words, words.replace(" ", ",  "), "!!! ???", "😀😀 …", "!!! ???"]
    first, longest = in_a_process(
        "duplicates_in_engine:find", folder=str(tmp_path), texts=texts, settings=[{}, {"keep": "longest"}]
    )
    pairs = [{(row["doc"], row["kept"], row["kind"]) for row in result["found"]} for result in (first, longest)]
    assert pairs == [{(1, 0, "exact"), (4, 2, "exact")}, {(0, 1, "exact"), (4, 2, "exact")}]


def test_the_result_does_not_depend_on_the_groups(in_a_process: Callable[..., Any], tmp_path: Path) -> None:
    rng = random.Random(8)
    texts = [version for _ in range(8) for version in versions(rng, 3)]
    rng.shuffle(texts)
    limits = [
        {"_GROUP_CHARACTERS": 10**9},
        {"_GROUP_CHARACTERS": 1, "_GROUPS_WITHOUT_PROCESSES": 99},
        {"_GROUP_CHARACTERS": 45_000, "_GROUPS_WITHOUT_PROCESSES": 0},
    ]
    one_group, single, processes = in_a_process(
        "duplicates_in_engine:find_in_groups", folder=str(tmp_path), texts=texts, parts=3, limits=limits
    )
    assert [result.pop()["groups"] for result in (one_group, single, processes)] == [1, 3, 2]
    assert len(one_group) == 24 and one_group == single == processes


def test_groups_are_ranges_of_parts_with_limited_size_and_number() -> None:
    assert groups({0: 10, 1: 10, 2: 25, 5: 5, 6: 20}, max_characters=20) == (0, 2, 5, 6, 7)
    assert groups({}, max_characters=20) == (0, 1)
    assert len(groups(dict.fromkeys(range(100_000), 10), max_characters=20)) <= 2 * 256


def test_duplicates_are_listed_by_id_in_order_and_the_largest_groups_are_returned(
    in_a_process: Callable[..., Any], tmp_path: Path
) -> None:
    result = in_a_process("duplicates_in_engine:named", folder=str(tmp_path), parts=3, rows=200)
    assert [row["dropped"] for row in result["rows"]] == [f"{p}:{r}" for p in range(3) for r in range(1, 200, 2)]
    assert result["rows"][5] == {
        "dropped": "0:11", "dropped_source": "s0", "kept": "0:10", "kept_source": "s0", "kind": "near", "jaccard": 0.9,
    }  # fmt: skip
    assert result["groups"] == [100, 100, 100], "row groups have one size, whatever the engine's batches"
    assert result["largest"] == [[1 << 32, 100], [0, 1], [2, 1]]


def planted(documents: int, seed: int) -> tuple[list[str], list[tuple[int, int, float]]]:
    """Return documents, a fifth of which are copies of others with varying similarity, and the planted pairs."""
    rng = random.Random(seed)
    words = [text(rng) for _ in range(documents * 4 // 5)]
    texts, pairs = [" ".join(document) for document in words], []
    for number in range(documents - len(texts)):
        source = number * 3 % len(words)
        copy = " ".join(replaced(words[source], rng.choice([0, 0.008, 0.017, 0.025, 0.04, 0.06, 0.08]), rng))
        pairs.append((source, len(texts), brute_force_jaccard(texts[source], copy)))
        texts.append(copy)
    return texts, pairs


@pytest.mark.parametrize("documents", [700, pytest.param(5000, marks=pytest.mark.long)])
def test_recall_and_precision_against_brute_force(
    in_a_process: Callable[..., Any], tmp_path: Path, documents: int
) -> None:
    texts, pairs = planted(documents, seed=5)
    config = SignatureConfig()
    (result,) = in_a_process(
        "duplicates_in_engine:find", folder=str(tmp_path), texts=texts, settings=[{"near": {"jaccard": 0.5}}]
    )
    dropped = {row["doc"]: row for row in result["found"]}
    wrong = [row for row in result["found"] if row["kind"] == "near" and row["jaccard"] < 0.5]
    assert not wrong, "every dropped pair was compared"
    assert set(dropped) <= {copy for _, copy, _ in pairs}, "unrelated texts are not duplicates"
    # The theoretical recall is 1 - (1 - s^rows)^bands; the measured one is within four standard errors in each bin.
    for low in np.arange(0.5, 1.0, 0.1):
        inside = [(s, copy) for _, copy, s in pairs if low <= s < low + 0.1 + 1e-9 * (low > 0.85)]
        if len(inside) < 10:
            continue
        theory = np.array([1 - (1 - s**config.rows) ** config.bands for s, _ in inside])
        measured = np.mean([copy in dropped for _, copy in inside])
        error = np.sqrt((theory * (1 - theory)).mean() / len(inside)) + 1 / len(inside)
        assert abs(measured - theory.mean()) < 4 * error, (low, measured, theory.mean(), len(inside))
    # Nothing is quadratic: each document occurs in at most one pair per band.
    assert result["sizes"]["pairs-0"]["rows"] <= documents * config.bands


def test_many_copies_give_few_pairs(in_a_process: Callable[..., Any], tmp_path: Path) -> None:
    rng = random.Random(11)
    base = text(rng, 200)
    texts = [" ".join([*base[:-1], f"copy{number}"]) for number in range(400)]
    (result,) = in_a_process("duplicates_in_engine:find", folder=str(tmp_path), texts=texts, settings=[{}])
    assert {row["doc"] for row in result["found"]} == set(range(1, 400))
    assert {row["kept"] for row in result["found"]} == {0}
    assert sum(size["rows"] for name, size in result["sizes"].items() if name.startswith("compared")) <= 400 * 3


def test_components_of_random_graphs(in_a_process: Callable[..., Any]) -> None:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rng = np.random.default_rng(0)
    path = [[n, n + 1] for n in range(300)]
    graphs = [path, *([[int(a), int(b)] for a, b in rng.integers(0, 200, (m, 2)) if a != b] for m in (40, 100, 300))]
    for edges, rooted in zip(
        graphs, in_a_process("duplicates_in_engine:root_of", folder="", graphs=graphs), strict=True
    ):
        size = max(map(max, edges)) + 1
        ones = np.ones(len(edges))
        matrix = coo_array((ones, ([a for a, _ in edges], [b for _, b in edges])), shape=(size, size))
        _, labels = connected_components(matrix, directed=False)
        least = {label: int(np.flatnonzero(labels == label)[0]) for label in set(labels)}
        touched = {node for edge in edges for node in edge}
        expected = {node: least[labels[node]] for node in touched if least[labels[node]] != node}
        assert {int(doc): root for doc, root in rooted.items()} == expected


def test_bands_of_equal_texts_are_equal_and_of_others_differ() -> None:
    marks = fingerprints(pa.chunked_array([pa.array(["a b c d e f g", "a b c d e f g", "x y z"])]), SignatureConfig())
    bands = marks["bands"].to_pylist()
    assert bands[0] == bands[1] and not set(bands[0]) & set(bands[2])
    assert len(set(bands[0])) == 14
    assert marks["key"][0] == marks["key"][1] != marks["key"][2]
    assert marks["key"][0] != marks["second_key"][0]
