"""From raw text through a finished corpus to a checkpoint: `corpus.from` on token shards, on text, and in mixtures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from transformers import AutoTokenizer

import headstart as package
from headstart.core import artifact, config, file_hashes
from headstart.core.data import Sample
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.core.registry import build, resolve
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.doctor import checkup
from headstart.stages.pretrain import prepare, run
from headstart.stages.pretrain.build import tokenizer_of
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import Pretraining
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.tokens.shards import Shards

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

TOKENIZER = {"vocab_size": 700, "sample_mb": 0.3}


@pytest.fixture(scope="module")
def raw(passages: str, verses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of eight verses each, as JSON lines, and a table of labeled verses."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "text.jsonl").write_text(passages, "utf-8")
    lines = [verse for verse in verses if verse]
    (folder / "other.txt").write_text("\n\n".join(lines[1600:2400]), encoding="utf-8")
    rows = [f'"{line[:60]}",{"long" if len(line) > 120 else "short"}' for line in lines[:60] if '"' not in line]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return folder


def built_corpus(raw: Path, name: str, **sections: Any) -> Path:
    recipe = {
        "output": str(raw / name), "title": f"Passages ({name})", "validation": 0.15, "duplicates": None, "lines": None,
        "sources": [{"name": "kjv", "files": [str(raw / "text.jsonl")]}], "reading": {"part_mb": 0.1},
        "clean": {"language": None, "quality": None, "personal": None}, **sections,
    }  # fmt: skip
    return package.build_corpus(recipe, quiet=True).path


@pytest.fixture(scope="module")
def tokens(raw: Path) -> Path:
    """A finished corpus with a tokenizer section."""
    return built_corpus(raw, "tokens", tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def text(raw: Path) -> Path:
    """A finished corpus without one."""
    return built_corpus(raw, "text")


def recipe_of(output: Path, corpus: Any, **sections: Any) -> dict[str, Any]:
    return {
        "output": str(output), "corpus": corpus, "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
        "objective": {"name": "masked_lm"},
        "training": {"budget": "4 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1}, **sections,
    }  # fmt: skip


@pytest.fixture(scope="module")
def from_tokens(tokens: Path, raw: Path) -> Path:
    return package.pretrain(recipe_of(raw / "from-tokens", {"from": str(tokens)}), quiet=True).path


@pytest.fixture(scope="module")
def from_text(text: Path, raw: Path) -> Path:
    recipe = recipe_of(raw / "from-text", {"from": str(text)}, tokenizer=TOKENIZER)
    return package.pretrain(recipe, quiet=True).path


def filled(folder: Path) -> PretrainRecipe:
    return config.fill_saved(PretrainRecipe, artifact.read_manifest(folder)["recipe"], str(folder))


def test_the_rows_are_those_of_the_corpus_s_own_shards(tokens: Path, from_tokens: Path) -> None:
    """Nothing is encoded again: the same rows in the same order, and the tokenizer of the corpus."""
    manifest = artifact.verify(from_tokens, "checkpoint of pretrain")
    assert not (from_tokens / "prepared").exists()
    recipe = filled(from_tokens)
    prepared = prepare.prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, from_tokens / "none")
    assert not (from_tokens / "none").exists()
    objective = build("objectives", resolve("objectives", "masked_lm").Config())
    vocabulary = vocabulary_of(AutoTokenizer.from_pretrained(str(from_tokens)))
    for split in ("train", "validation"):
        own = Shards(tokens / "shards" / split)
        opened = getattr(prepared.corpora[0], split)
        assert opened.folder == own.folder and manifest["data"][split]["tokens"] == own.tokens
        expected, rows = (cut(source, vocabulary, objective.row_shape(32)) for source in (own, opened))
        samples = [Sample(0, index) for index in range(len(expected))]
        assert np.array_equal(rows.rows(samples).ids, expected.rows(samples).ids)
    vocabularies = [
        AutoTokenizer.from_pretrained(str(path)).get_vocab() for path in (from_tokens, tokens / "tokenizer")
    ]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_the_corpus_and_its_datasheet_are_parents(kind: str, request: pytest.FixtureRequest) -> None:
    corpus, folder = request.getfixturevalue(kind), request.getfixturevalue(f"from_{kind}")
    manifest = artifact.verify(folder, "checkpoint of pretrain")
    parents = manifest["parents"]
    assert set(parents) == {"tokenizer", "train", "validation", "corpus", "datasheet"}
    assert parents["corpus"] == artifact.identity(corpus)
    assert parents["datasheet"] == file_hashes.sha256(corpus / "DATASHEET.md")
    assert manifest["recipe"]["corpus"] == {"from": str(corpus), "prepared": None, "language": None}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"Passages ({kind})" in card.replace("\\", "") and f"`{corpus}/DATASHEET.md`" in card
    assert parents["corpus"][:16] in card and parents["datasheet"][:16] in card


def test_the_cleaned_text_is_encoded_as_it_was_split(text: Path, from_text: Path, tmp_path: Path) -> None:
    """Train and validation are those of the corpus; the tokenizer is trained on its training text."""
    (tokenizer_folder,) = (from_text / "prepared").glob("tokenizer-*")
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    assert len(tokenizer) == 700
    for split in ("train", "validation"):
        files = sorted((text / "documents" / split).glob("*.parquet"))
        texts = [text for file in files for text in pq.read_table(file)["text"].to_pylist()]
        counts = shards.write((prepare.Document("", text) for text in texts), tokenizer, tmp_path / split)
        (written,) = (from_text / "prepared").glob(f"{split}-*")
        assert counts["documents"] == len(texts) > 3
        for name in ("tokens-00000.bin", "documents.bin", "sentences.bin", "counts.json"):
            assert (written / name).read_bytes() == (tmp_path / split / name).read_bytes()


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_a_filled_recipe_repeats_itself(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(f"from_{kind}")
    written = (folder / "recipe.yaml").read_text(encoding="utf-8")
    recipe = config.load(folder / "recipe.yaml", PretrainRecipe)
    assert config.to_yaml(recipe) == written
    assert (yaml.safe_load(written)["tokenizer"] is None) == (kind == "tokens")
    before = (folder / artifact.MANIFEST).read_bytes()
    assert run.run(recipe, quiet=True) == folder and (folder / artifact.MANIFEST).read_bytes() == before


def test_plan_evaluate_doctor_and_rehearsal_accept_it(tokens: Path, from_tokens: Path, raw: Path) -> None:
    given = recipe_of(raw / "none", {"from": str(tokens)})
    given["training"] = {**given["training"], "budget": "1 epochs"}
    planned = package.plan(given)
    assert planned["forecast"]["tokens"] == pytest.approx(Shards(tokens / "shards" / "train").tokens, rel=0.01)
    assert planned["size"]["parameters"] == artifact.read_manifest(from_tokens)["parameters"]
    assert package.evaluate(from_tokens, raw / "other.txt")["rows"] > 50
    findings = " ".join(finding.sentence for finding in checkup.run(from_tokens, filled(from_tokens)))
    assert "sentences of" in findings, "the shards of the corpus are found"
    pretraining = Pretraining(from_tokens)
    batch = pretraining.batch([Sample(0, 0), Sample(0, 1)])
    assert batch["input_ids"].shape == (2, 32)
    assert set(batch["input_ids"][:, 1].tolist()) <= set(range(700))


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_forgetting_reads_the_corpus_again(
    kind: str, raw: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = str(raw / "rows.csv")
    recipe = {
        "output": str(tmp_path / "tuned"), "model": str(request.getfixturevalue(f"from_{kind}")), "seeds": 1,
        "task": {"kind": "classify"}, "adaptation": {"name": "rehearsal"}, "compare_with": ["majority"],
        "data": {"train": rows, "validation": 15, "test": rows, "allow_overlap": True}, "forgetting": True,
        "training": {"budget": "2 steps", "max_length": 32, "eval_count": 1, "batch_size": 8},
    }  # fmt: skip
    assert "change of pre-training loss" in artifact.read_manifest(package.finetune(recipe, quiet=True).path)["table"]


def test_a_mixture_of_a_finished_corpus_and_raw_files(tokens: Path, raw: Path, tmp_path: Path) -> None:
    """The tokenizer of the corpus encodes the raw files too."""
    parts = [
        {"name": "built", "from": str(tokens), "weight": 3},
        {"name": "raw", "files": [str(raw / "other.txt")], "weight": 1, "validation": 0.1},
    ]
    folder = package.pretrain(recipe_of(tmp_path / "mixed", {"parts": parts}), quiet=True).path
    manifest = artifact.read_manifest(folder)
    of_splits = {f"{split} {name}" for split in ("train", "validation") for name in ("built", "raw")}
    assert set(manifest["parents"]) == {"tokenizer", "corpus built", "datasheet built"} | of_splits
    assert manifest["data"]["corpora"]["built"]["share"] == 0.75
    assert manifest["parents"]["tokenizer"] == artifact.identity(tokens / "tokenizer")
    kinds = sorted(path.name.partition("-")[0] for path in (folder / "prepared").iterdir())
    assert kinds == ["train", "validation"], "nothing is written for the finished corpus"
    assert "Passages" in (folder / "README.md").read_text(encoding="utf-8")


def test_another_tokenizer_is_refused(tokens: Path, raw: Path, tmp_path: Path) -> None:
    corpus = {"from": str(tokens)}
    with pytest.raises(RecipeError, match=r"tokenizer\.vocab_size is 900, but .*tokens was tokenized with 700"):
        package.pretrain(recipe_of(tmp_path / "a", corpus, tokenizer={"vocab_size": 900, "sample_mb": 0.3}), quiet=True)
    for same in (TOKENIZER, {"path": str(tokens / "tokenizer")}):
        recipe = config.fill(PretrainRecipe, recipe_of(tmp_path / "b", corpus, tokenizer=same))
        assert tokenizer_of(recipe).path == tokens / "tokenizer"
    other = built_corpus(raw, "other", tokenizer={**TOKENIZER, "vocab_size": 500})
    parts = [{"name": "a", "from": str(tokens)}, {"name": "b", "from": str(other)}]
    with pytest.raises(RecipeError, match="have different tokenizers"):
        package.pretrain(recipe_of(tmp_path / "c", parts), quiet=True)


def test_a_modified_corpus_is_refused(tokens: Path, tmp_path: Path) -> None:
    """Its files are verified, and a run is tied to the text and tokens that it started with."""
    copy = tmp_path / "copy"
    shutil.copytree(tokens, copy)
    path = copy / "shards" / "train" / "tokens-00000.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"\x01\x01")
    with pytest.raises(ArtifactError, match=r"tokens-00000\.bin was modified after it was written"):
        package.pretrain(recipe_of(tmp_path / "out", {"from": str(copy)}), quiet=True)
    (copy / artifact.MANIFEST).unlink()
    with pytest.raises(ArtifactError, match=r"has no headstart\.json"):
        package.pretrain(recipe_of(tmp_path / "out", {"from": str(copy)}), quiet=True)


def test_a_corpus_without_held_out_text_is_refused(raw: Path, tmp_path: Path) -> None:
    corpus = built_corpus(raw, "whole", validation=0.0)
    with pytest.raises(DataError, match=r"has no validation documents.*Build the corpus with a larger `validation`"):
        package.pretrain(recipe_of(tmp_path / "out", {"from": str(corpus)}, tokenizer=TOKENIZER), quiet=True)


def test_answers_in_the_datasheet_do_not_change_the_text(text: Path, tmp_path: Path) -> None:
    """An unfinished run may be resumed after someone has answered a question of the datasheet."""
    copy = tmp_path / text.name
    shutil.copytree(text, copy)
    recipe = config.fill(PretrainRecipe, recipe_of(tmp_path / "out", {"from": str(copy)}))
    before = run.inputs_of(recipe)
    with artifact.amended(copy, note="changed") as staging:
        (staging / "DATASHEET.md").write_text("answered", encoding="utf-8")
    assert run.inputs_of(recipe) == before
    assert recipe.corpus.parents()["datasheet"] == file_hashes.sha256(copy / "DATASHEET.md")
