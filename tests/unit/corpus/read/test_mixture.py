"""The corpus section of a recipe: raw files, a finished corpus, or several of either."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core import config
from headstart.core.config import Section
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.corpus.read import mixture as corpora
from headstart.corpus.read.built import BuiltCorpus
from headstart.corpus.read.mixture import Corpus, CorpusMixture, built_parts, is_weighted, parts_of, shares_of
from headstart.corpus.read.readers import CorpusConfig, text_bytes


class Recipe(Section):
    corpus: Corpus


def mixture(*weights, **settings) -> CorpusMixture:
    parts = [{"name": f"c{i}", "files": ["x"], "weight": weight} for i, weight in enumerate(weights)]
    return CorpusMixture.model_validate({"parts": parts, **settings})


def test_weights_are_normalized_to_shares():
    for weights in ((3, 1), (0.3, 0.1)):
        assert shares_of(mixture(*weights), [5, 500]) == pytest.approx([0.75, 0.25])


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=20), st.floats(0, 1))
def test_the_exponent_upweights_small_corpora(sizes, exponent):
    shares = shares_of(mixture(*[None] * len(sizes), exponent=exponent), sizes)
    plain = [size / sum(sizes) for size in sizes]
    assert sum(shares) == pytest.approx(1)
    assert shares[sizes.index(min(sizes))] >= min(plain) - 1e-9
    assert shares[sizes.index(max(sizes))] <= max(plain) + 1e-9
    # q_i / q_j = (p_i / p_j)^exponent, as in both papers.
    assert shares[0] / shares[1] == pytest.approx((sizes[0] / sizes[1]) ** exponent)


def test_a_single_corpus_has_the_whole_share():
    single = CorpusConfig(files=["x"])
    assert parts_of(single) == {"": single} and shares_of(single, [7]) == [1.0]
    assert list(parts_of(mixture(1, 2))) == ["c0", "c1"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parts": []}, "at least one corpus"),
        ({"parts": [{"name": "a", "files": ["x"]}] * 2}, "'a' occurs twice"),
        ({"parts": [{"name": "a", "files": ["x"], "weight": 1}, {"name": "b", "files": ["x"]}]}, "'b' has no weight"),
        ({"parts": [{"name": "a", "files": ["x"], "weight": 1}], "exponent": 0.5}, "weights and an exponent"),
    ],
)
def test_inconsistent_settings_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        CorpusMixture.model_validate(given)


def test_a_damaged_file_is_named_when_its_size_is_needed(tmp_path):
    (tmp_path / "damaged.parquet").write_text("damaged", encoding="utf-8")
    with pytest.raises(DataError, match=r"damaged\.parquet cannot be read as parquet"):
        text_bytes(CorpusConfig(files=[str(tmp_path / "damaged.parquet")]))


@pytest.mark.parametrize(
    ("section", "kinds"),
    [
        ({"files": ["x"]}, {"": CorpusConfig}),
        ({"from": "runs/corpus"}, {"": BuiltCorpus}),
        ([{"name": "a", "from": "x"}, {"name": "b", "files": ["y"]}], {"a": BuiltCorpus, "b": CorpusConfig}),
        ({"parts": [{"name": "a", "from": "x", "weight": 2}], "prepared": "z"}, {"a": BuiltCorpus}),
    ],
)
def test_every_form_of_the_section_survives_writing_and_reading(section, kinds):
    recipe = config.fill(Recipe, {"corpus": section})
    parts = parts_of(recipe.corpus)
    assert list(parts) == list(kinds) and all(isinstance(parts[name], kind) for name, kind in kinds.items())
    assert len(built_parts(recipe.corpus)) == list(kinds.values()).count(BuiltCorpus)
    assert config.fill(Recipe, config.to_dict(recipe)) == recipe
    if section == {"from": "runs/corpus"}:
        assert config.to_dict(recipe)["corpus"] == {"from": "runs/corpus", "prepared": None, "language": None}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"from": "x", "validation": 0.1},
            r"corpus\.validation is not a known key\. Allowed here: from, prepared, language\.",
        ),
        ({"from": "x", "prepard": "y"}, r"corpus\.prepard is not a known key; did you mean 'prepared'"),
        ({"parts": [{"name": "a", "from": "x", "wieght": 1}]}, r"corpus\.parts\.0\.wieght .* did you mean 'weight'"),
        ([{"files": ["x"], "nam": "a"}], r"corpus\.0\.nam is not a known key; did you mean 'name'"),
        ([{"from": "x", "name": "a b"}], r"corpus\.0\.name is 'a b'"),
    ],
)
def test_wrong_keys_are_named_as_the_recipe_writes_them(section, words):
    with pytest.raises(RecipeError, match=words):
        config.fill(Recipe, {"corpus": section})


def test_sizes_are_needed_without_weights_only():
    assert is_weighted(CorpusConfig(files=["x"])) and is_weighted(mixture(1, 2))
    assert not is_weighted(mixture(None, None))


def test_a_folder_that_is_not_a_finished_corpus_is_refused(tmp_path):
    section = BuiltCorpus.model_validate({"from": str(tmp_path / "nowhere")})
    with pytest.raises(ArtifactError, match="there is no folder"):
        corpora.sources(section)
    with pytest.raises(ArtifactError, match=r"has no headstart\.json"):
        corpora.text_bytes(BuiltCorpus.model_validate({"from": str(tmp_path)}))
