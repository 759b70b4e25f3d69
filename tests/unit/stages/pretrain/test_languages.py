"""Language tokens: rows begin with that of their corpus, and texts of fine-tuning and generation can begin with one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import headstart
from headstart.core import config, registry
from headstart.core.data import Examples, InputSpec, Rows, Sample
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import Pretraining
from headstart.stages.pretrain.stream import StreamedRows
from headstart.tokens.tagged_rows import TaggedRows
from headstart.tokens.tokenizer import add_special


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, verses):
    folder = tmp_path_factory.mktemp("languages")
    for name, some in (("en", verses[:600]), ("pt", verses[600:900])):
        documents = [" ".join(some[start : start + 6]) for start in range(0, len(some), 6)]
        (folder / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return folder


def recipe(corpora, output, languages=("en", "pt")):
    parts = [
        {"name": name, "files": [str(corpora / f"{name}.txt")], "validation": 0.2, **({"language": tag} if tag else {})}
        for name, tag in zip(("en", "pt"), languages, strict=True)
    ]
    return {
        "output": str(output), "corpus": parts, "tokenizer": {"vocab_size": 500},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"}, "objective": {"name": "masked_lm"},
        "training": {"budget": "3 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(corpora):
    return headstart.pretrain(recipe(corpora, corpora / "out"), quiet=True).path


def test_rows_begin_with_the_language_of_their_corpus(pretrained):
    pretraining = Pretraining(pretrained)
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    en, pt = tokenizer.convert_tokens_to_ids(["<en>", "<pt>"])
    assert {en, pt}.isdisjoint({tokenizer.unk_token_id}) and en != pt
    feed = pretraining.feed
    first = feed.parts[0].size
    rows = feed.rows.rows([Sample(0, 0), Sample(0, first - 1), Sample(0, first)]).ids
    assert rows.shape == (3, 32) and (rows[:, 0] == tokenizer.cls_token_id).all()
    assert rows[:, 1].tolist() == [en, en, pt] and not np.isin(rows[:, 2:], [en, pt]).any()
    batch = feed.batch([Sample(0, index) for index in range(8)])
    assert (batch["input_ids"][:, 1] == en).all() and not torch.isin(batch["labels"], torch.tensor([en, pt])).any()


def test_streamed_rows_begin_with_the_language_of_their_corpus(corpora, tmp_path, monkeypatch):
    seen, rows = [], StreamedRows.rows
    monkeypatch.setattr(StreamedRows, "rows", lambda self, samples: seen.append(rows(self, samples)) or seen[-1])
    corpus = {"files": [str(corpora / "pt.txt")], "validation": 0.2, "language": "pt", "stream": True}
    folder = headstart.pretrain({**recipe(corpora, tmp_path / "out"), "corpus": corpus}, quiet=True).path
    tag = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<pt>")
    assert seen and all((batch.ids[:, 1] == tag).all() for batch in seen)


def test_a_text_with_its_language_is_read_as_in_pretraining(pretrained):
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tag = tokenizer.convert_tokens_to_ids("<pt>")
    spec = InputSpec(tokenizer, "encoder", 16)
    section = config.resolve_section("tasks", "task", {"kind": "classify", "language": "pt"}, [])
    task = registry.build("tasks", section)
    rows = Examples({"text": ["God said", "no"]}, ["a", "b"], "rows")
    task.fit_labels(rows)
    ids = [feature["input_ids"] for feature in task.encode(rows, spec)]
    assert all(row[:2] == [tokenizer.cls_token_id, tag] and tag not in row[2:] for row in ids)
    # The token in a template or a prompt.
    assert tokenizer("<pt> God said", add_special_tokens=False)["input_ids"][0] == tag
    other = config.resolve_section("tasks", "task", {"kind": "classify", "language": "de"}, [])
    unknown = registry.build("tasks", other)
    unknown.fit_labels(rows)
    with pytest.raises(RecipeError, match="no token <de>"):
        unknown.encode(rows, spec)


def test_all_corpora_have_a_language_or_none(corpora, tmp_path):
    with pytest.raises(RecipeError, match="'pt' has no language"):
        config.fill(PretrainRecipe, recipe(corpora, tmp_path, ("en", None)))
    saved = config.to_dict(config.fill(PretrainRecipe, recipe(corpora, tmp_path, (None, None))))
    assert "language" not in saved["corpus"]["parts"][0]


def test_a_language_moves_what_points_into_a_row(tiny_tokenizer):
    class Source:
        def __len__(self):
            return 1

        def rows(self, samples):
            ids = np.array([[2, 7, 8, 3, 9, 3]])
            return Rows(ids, samples, [np.array([1, 4])], np.array([4]), np.array([[11, 12, 13, 0, 0, 0]]))

    vocabulary = vocabulary_of(tiny_tokenizer)
    assert vocabulary.cls == 2
    rows = TaggedRows(Source(), 99, vocabulary).rows([Sample(0, 0)])
    assert rows.ids.tolist() == [[2, 99, 7, 8, 3, 9, 3]]
    assert rows.sentence_starts[0].tolist() == [2, 5] and rows.second_start.tolist() == [5]
    assert rows.negative_ids.tolist() == [[11, 12, 13, 0, 0, 0, vocabulary.pad]]


def test_a_denoiser_keeps_the_language_and_does_not_write_it(tiny_tokenizer):
    backend, special = tiny_tokenizer.backend_tokenizer, tiny_tokenizer.special_tokens_map
    tokenizer = type(tiny_tokenizer)(tokenizer_object=backend, **special)
    vocabulary = add_special(tokenizer, ["<pt>"])
    tag, ordinary = vocabulary.added["<pt>"], int(vocabulary.ordinary[0])
    row = [vocabulary.cls, tag, *range(ordinary, ordinary + 12), vocabulary.sep]
    section = config.resolve_section("objectives", "objective", {"name": "denoising"}, [])
    rows = Rows(np.array([row] * 4), [Sample(0, i) for i in range(4)], [np.array([2, 8])] * 4)
    batch = registry.build("objectives", section).corrupt(rows, vocabulary, seed=0)
    assert (batch["input_ids"][:, 1] == tag).all() and (batch["labels"] != tag).all()
    assert batch["labels"].tolist() == [row[2:]] * 4
