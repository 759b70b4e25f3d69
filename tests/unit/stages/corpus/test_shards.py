"""The token shards of a corpus, with a tokenizer that is existing, extended or new."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.stages.corpus import shards as corpus_shards
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.tokens import extension, tokenizer

TEXTS = ["The cardiomyopathy of thrombocytopenia in the beginning."] * 20


def recipe(tokens) -> CorpusRecipe:
    return config.fill(
        CorpusRecipe, {"output": "out", "sources": [{"name": "a", "files": "a.txt"}], "tokenizer": tokens}
    )


@pytest.fixture
def written(tiny_tokenizer, tmp_path):
    """Writes the shards of one part in this process; returns the tokenizer's folder and the counts."""
    tiny_tokenizer.save_pretrained(str(tmp_path / "existing"))

    def write(**settings):
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        (work / "select" / "train").mkdir(parents=True)
        table = pa.table({"id": [str(i) for i in range(len(TEXTS))], "text": TEXTS})
        pq.write_table(table, work / "select" / "train" / "part-00000.parquet")
        given = recipe({"path": str(tmp_path / "existing"), **settings})
        selected = [{"part": 0, "splits": {"train": len(TEXTS)}}]
        counts = corpus_shards.write(
            given, work, selected, lambda _, __, tasks: [corpus_shards.encode_part(task) for task in tasks]
        )
        return work / "shards" / "tokenizer", counts["train"]

    return write


def test_an_existing_tokenizer_is_extended_by_the_words_of_the_corpus(written, tiny_tokenizer):
    same, before = written()
    assert tokenizer.load(same).get_vocab() == tiny_tokenizer.get_vocab()
    extended, after = written(extend=2)
    assert len(tokenizer.load(extended)) == len(tiny_tokenizer) + 2 and len(extension.load_pieces(extended)) == 2
    assert tokenizer.load(extended).tokenize("cardiomyopathy") == ["cardiomyopathy"]
    assert after["tokens"] < before["tokens"]


def test_extend_needs_a_tokenizer():
    with pytest.raises(RecipeError, match=r"extend is 9, but there is no tokenizer to extend.*tokenizer\.path"):
        recipe({"extend": 9})


def test_a_part_larger_than_a_window_is_shuffled_by_windows(tmp_path, monkeypatch):
    texts = [f"text {i} " + "x" * 50 for i in range(300)]
    path = tmp_path / "select" / "train" / "part-00000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": texts, "text": texts}), path, row_group_size=10)
    task = {"number": 0, "split": "train", "work": str(tmp_path), "seed": 3}

    def order() -> list[str]:
        return [document.text for document in corpus_shards._shuffled(task)]

    whole = order()
    windows = []
    read = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_groups",
        lambda self, groups, **k: (windows.append(len(groups)), read(self, groups, **k))[1],
    )
    monkeypatch.setattr(corpus_shards, "_WINDOW_BYTES", 8_000)
    windowed = order()
    assert sorted(windowed) == sorted(whole) == sorted(texts) and windowed == order()
    assert len(windows) / 2 > 3 and max(windows) <= 15 and sum(windows) == 60
    assert windowed not in (whole, texts)
    # Adjacent documents come from distant row groups.
    indices = [texts.index(text) for text in windowed[:20]]
    assert max(indices) - min(indices) > 100
