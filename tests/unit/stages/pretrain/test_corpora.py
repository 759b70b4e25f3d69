"""Several corpora in one recipe: sampled by weight or by size, evaluated separately and together."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.pretrain.learner import CorpusRows, RowBatches
from headstart.tokens.shards import Shards

SHIFT = {ord(letter): ord("α") + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


@pytest.fixture(scope="module")
def folder(way, tmp_path_factory):
    """English text, and a tenth as much in another script, which acts as a second language."""
    corpora = tmp_path_factory.mktemp("corpora")
    lines = (way / "text.txt").read_text(encoding="utf-8").split("\n\n")
    (corpora / "en.txt").write_text("\n\n".join(lines), encoding="utf-8")
    (corpora / "xx.txt").write_text("\n\n".join(lines[: len(lines) // 10]).lower().translate(SHIFT), encoding="utf-8")
    return corpora


def recipe(folder, recipe_of, output, corpus, **training):
    base = recipe_of["pretrain"](folder, output=str(output), corpus=corpus)
    base["training"] = {**base["training"], "budget": "10 steps", "logging_steps": 1, **training}
    return base


def parts(folder, **weights):
    given = {name: {"weight": weight} if weight else {} for name, weight in weights.items()}
    return [{"name": n, "files": [str(folder / f"{n}.txt")], "validation": 0.1, **g} for n, g in given.items()]


@pytest.fixture(scope="module")
def mixed(folder, recipe_of):
    corpus = {"parts": parts(folder, en=1, xx=3), "prepared": str(folder / "shared")}
    return headstart.pretrain(recipe(folder, recipe_of, folder / "mixed", corpus), quiet=True).path


def test_the_manifest_reports_totals_and_each_corpus(mixed):
    facts = artifact.read_manifest(mixed)
    validation = facts["metrics"]["validation"]
    assert list(validation) == ["loss", "accuracy", "loss/en", "loss/xx", "accuracy/en", "accuracy/xx"]
    assert validation["loss"] == pytest.approx(0.25 * validation["loss/en"] + 0.75 * validation["loss/xx"])
    data, progress = facts["data"], facts["progress"]
    assert data["corpora"]["en"]["share"] == 0.25
    assert data["train"]["tokens"] == sum(data["corpora"][name]["train"]["tokens"] for name in ("en", "xx"))
    assert [source["name"] for source in data["sources"]] == ["en.txt", "xx.txt"]
    assert progress["epochs_of"]["xx"] > 20 * progress["epochs_of"]["en"] > 0
    assert set(facts["parents"]) == {"tokenizer", "train en", "validation en", "train xx", "validation xx"}
    card = (mixed / "README.md").read_text(encoding="utf-8")
    assert f"held-out loss on xx | {validation['loss/xx']:.3f}" in card and "| xx | 75.0% |" in card
    curve = [json.loads(line) for line in (mixed / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert any("validation/loss/xx" in line for line in curve)


def test_the_unigram_entropy_follows_the_shares(mixed, folder):
    facts = artifact.read_manifest(mixed)
    counts = [Shards(path).unigrams for path in sorted((folder / "shared").glob("train-*"))]
    counts.sort(key=np.sum)
    read = 0.75 * counts[0] / counts[0].sum() + 0.25 * counts[1] / counts[1].sum()
    assert facts["metrics"]["unigram_entropy"] == pytest.approx(-(read[read > 0] * np.log(read[read > 0])).sum())


def test_the_tokenizer_is_trained_on_the_same_shares(mixed, folder, recipe_of, tmp_path):
    """A language with a share of three quarters gets most of the vocabulary, however little text it has."""
    few = {"parts": parts(folder, en=99, xx=1)}
    other = headstart.pretrain(recipe(folder, recipe_of, tmp_path / "few", few, budget="1 steps"), quiet=True)

    def foreign(run):
        tokens = json.loads((run / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        return sum(any("α" <= letter <= "ϊ" for letter in token) for token in tokens)

    assert foreign(mixed) > 2 * foreign(other) > 0


def test_a_resumed_run_equals_an_uninterrupted_one(mixed, folder, recipe_of, tmp_path, interrupted_at):
    corpus = {"parts": parts(folder, en=1, xx=3), "prepared": str(folder / "shared")}
    interrupted = recipe(folder, recipe_of, tmp_path / "interrupted", corpus)
    with interrupted_at(4):
        headstart.pretrain(interrupted, quiet=True)
    resumed = headstart.pretrain(interrupted, quiet=True)
    assert (resumed / "model.safetensors").read_bytes() == (mixed / "model.safetensors").read_bytes()
    assert artifact.read_manifest(resumed)["metrics"] == artifact.read_manifest(mixed)["metrics"]


def test_a_run_is_tied_to_each_of_its_corpora(mixed, folder, recipe_of):
    corpus = {"parts": parts(folder, en=1, xx=3), "prepared": str(folder / "shared")}
    given = recipe(folder, recipe_of, mixed, corpus)
    assert headstart.pretrain(given, quiet=True).path == mixed, "it is finished"
    text = (folder / "xx.txt").read_text(encoding="utf-8")
    (folder / "xx.txt").write_text(text + "\n\nmore", encoding="utf-8")
    try:
        with pytest.raises(ArtifactError, match="the content of corpus xx has changed since"):
            headstart.pretrain(given, quiet=True)
    finally:
        (folder / "xx.txt").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("exponent", [None, 0.7, 0.0])
def test_sizes_with_an_exponent(folder, recipe_of, tmp_path, exponent):
    """The shares follow n^exponent of the tokens in the shards, and n without an exponent."""
    corpus = {"parts": parts(folder, en=None, xx=None), "exponent": exponent, "prepared": str(folder / "by-size")}
    out = headstart.pretrain(recipe(folder, recipe_of, tmp_path / "out", corpus, budget="1 steps"), quiet=True)
    each = artifact.read_manifest(out)["data"]["corpora"]
    tokens = [each[name]["train"]["tokens"] for name in ("en", "xx")]
    expected = (tokens[0] / tokens[1]) ** (1 if exponent is None else exponent)
    assert tokens[0] > 5 * tokens[1]
    assert each["en"]["share"] / each["xx"]["share"] == pytest.approx(expected)


def test_plan_and_evaluate_accept_several(mixed, folder, recipe_of):
    corpus = parts(folder, en=1, xx=3)
    planned = headstart.plan(recipe(folder, recipe_of, "none", corpus, budget="1 epoch"))
    size = sum((folder / name).stat().st_size for name in ("en.txt", "xx.txt"))
    assert planned["forecast"]["tokens"] == pytest.approx(size / 4.4, rel=0.01)
    assert headstart.evaluate(mixed, folder / "en.txt")["rows"] > 100


def test_shards_are_those_of_the_corpus_alone(mixed, folder, recipe_of, tmp_path):
    """Weights and names do not change the encoded text, so another mixture reads the same shards."""
    tokenizer = next((folder / "shared").glob("tokenizer-*"))
    alone = {"files": [str(folder / "en.txt")], "validation": 0.1, "prepared": str(folder / "shared")}
    given = recipe(folder, recipe_of, tmp_path / "alone", alone, budget="1 steps")
    before = set((folder / "shared").iterdir())
    headstart.pretrain(given | {"tokenizer": {"path": str(tokenizer)}}, quiet=True)
    assert set((folder / "shared").iterdir()) == before


def test_an_error_names_the_corpus(folder, recipe_of, tmp_path):
    (tmp_path / "bad.txt").write_text("one line\n", encoding="utf-8")
    corpus = [*parts(folder, en=1), {"name": "bad", "files": [str(tmp_path / "bad.txt")], "weight": 1}]
    with pytest.raises(DataError, match="corpus 'bad': none of the 1 documents of the corpus is in the"):
        headstart.pretrain(recipe(folder, recipe_of, tmp_path / "x", corpus), quiet=True)


def test_a_batch_has_each_row_at_its_index(mixed, folder):
    """The feed returns the corpus's row for an index, and the noise depends on the common index."""
    from transformers import AutoTokenizer

    from headstart.core.data import Sample
    from headstart.core.registry import build, resolve
    from headstart.core.vocabulary import vocabulary_of
    from headstart.tokens.rows import cut

    vocabulary = vocabulary_of(AutoTokenizer.from_pretrained(str(mixed)))
    objective = build("objectives", resolve("objectives", "masked_lm").Config())
    shards = [Shards(path) for path in sorted((folder / "shared").glob("validation-*"))]
    rows = [cut(folder_shards, vocabulary, objective.row_shape(32)) for folder_shards in shards]
    feed = RowBatches([CorpusRows(str(n), 0.5, source) for n, source in enumerate(rows)], objective, vocabulary, 0)
    assert len(feed) == len(rows[0]) + len(rows[1]) and [part.size for part in feed.parts] == [len(r) for r in rows]
    first = len(rows[0])
    samples = [Sample(0, first + 2), Sample(0, 1), Sample(3, first), Sample(0, 0)]
    ids = feed.rows.rows(samples).ids
    expected = [rows[1].rows([Sample(0, 2)]), rows[0].rows([Sample(0, 1)]), rows[1].rows([Sample(0, 0)])]
    assert all((ids[i] == row.ids[0]).all() for i, row in enumerate(expected))
    alone = feed.batch(samples[:1])
    assert (feed.batch(samples)["input_ids"][0] == alone["input_ids"][0]).all()
