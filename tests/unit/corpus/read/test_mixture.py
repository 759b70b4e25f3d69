"""How several corpora are drawn from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.errors import DataError
from headstart.corpus.read.mixture import CorpusMixture, parts_of, shares_of
from headstart.corpus.read.readers import CorpusConfig, text_bytes


def mixture(*weights, **settings) -> CorpusMixture:
    parts = [{"name": f"c{place}", "files": ["x"], "weight": weight} for place, weight in enumerate(weights)]
    return CorpusMixture.model_validate({"parts": parts, **settings})


def test_weights_are_shares_up_to_a_factor():
    for weights in ((3, 1), (0.3, 0.1)):
        assert shares_of(mixture(*weights), [5, 500]) == pytest.approx([0.75, 0.25])


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=20), st.floats(0, 1))
def test_the_exponent_lifts_the_small_ones(sizes, exponent):
    shares = shares_of(mixture(*[None] * len(sizes), exponent=exponent), sizes)
    plain = [size / sum(sizes) for size in sizes]
    assert sum(shares) == pytest.approx(1)
    assert shares[sizes.index(min(sizes))] >= min(plain) - 1e-9
    assert shares[sizes.index(max(sizes))] <= max(plain) + 1e-9
    # q_i / q_j = (p_i / p_j)^exponent, as both papers have it.
    assert shares[0] / shares[1] == pytest.approx((sizes[0] / sizes[1]) ** exponent)


def test_one_corpus_is_all_there_is():
    alone = CorpusConfig(files=["x"])
    assert parts_of(alone) == {"": alone} and shares_of(alone, [7]) == [1.0]
    assert list(parts_of(mixture(1, 2))) == ["c0", "c1"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parts": []}, "one corpus or more"),
        ({"parts": [{"name": "a", "files": ["x"]}] * 2}, "'a' stands twice"),
        ({"parts": [{"name": "a", "files": ["x"], "weight": 1}, {"name": "b", "files": ["x"]}]}, "'b' has no weight"),
        ({"parts": [{"name": "a", "files": ["x"], "weight": 1}], "exponent": 0.5}, "weights and an exponent"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        CorpusMixture.model_validate(given)


def test_a_torn_file_is_named_when_sizes_are_asked(tmp_path):
    (tmp_path / "torn.parquet").write_text("torn", encoding="utf-8")
    with pytest.raises(DataError, match=r"torn\.parquet cannot be read as parquet"):
        text_bytes(CorpusConfig(files=[str(tmp_path / "torn.parquet")]))
