"""Translation language modeling: pairs of sentences, masked on both sides."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForMaskedLM

from headstart.core.data import Document, Rows, Sample
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.translation_lm import TranslationLM
from headstart.tokens import shards
from headstart.tokens.rows import cut

PAIRS = [
    ("In the beginning God created the heaven and the earth", "And the earth was without form"),
    ("And God said", "Let there be light"),
    ("And God saw the light", "that it was good and God divided the light from the darkness"),
]


def rows_of(tokenizer, folder, length=48) -> Rows:
    """Each document is a sentence and, on the next line, its translation."""
    shards.write((Document(str(i), "\n".join(pair)) for i, pair in enumerate(PAIRS)), tokenizer, folder)
    source = cut(shards.Shards(folder), vocabulary_of(tokenizer), TranslationLM().row_shape(length))
    assert len(source) == len(PAIRS)
    return source.rows([Sample(0, i) for i in range(len(PAIRS))])


def test_a_document_is_a_pair_in_one_row(tiny_tokenizer, tmp_path):
    rows = rows_of(tiny_tokenizer, tmp_path / "shards")
    for ids, pair in zip(rows.ids, PAIRS, strict=True):
        expected = tiny_tokenizer(*pair)["input_ids"]
        assert ids[: len(expected)].tolist() == expected
        assert (ids[len(expected) :] == tiny_tokenizer.pad_token_id).all()


def test_both_sentences_are_masked_in_proportion_to_their_tokens(tiny_tokenizer, tmp_path):
    rows, vocabulary = rows_of(tiny_tokenizer, tmp_path / "shards"), vocabulary_of(tiny_tokenizer)
    objective = TranslationLM(rate=0.3)
    sides = np.zeros((len(PAIRS), 2))
    for epoch in range(40):
        samples = [Sample(epoch, i) for i in range(len(PAIRS))]
        batch = objective.corrupt(Rows(rows.ids, samples), vocabulary, 0)
        sizes = batch["attention_mask"].sum(1)
        assert batch["weights"].sum(1).tolist() == [max(1, round(0.3 * size)) for size in sizes.tolist()]
        for row, second in enumerate(rows.second_start):
            used = batch["positions"][row][batch["weights"][row] > 0]
            sides[row] += [(used < second).sum(), (used >= second).sum()]
    assert (sides > 0).all(), "one language is never masked"


def test_a_translation_helps_to_predict_and_padding_does_not_matter(tiny_tokenizer, tmp_path, checkpoint):
    model = AutoModelForMaskedLM.from_pretrained(str(checkpoint("bert"))).eval()
    vocabulary, objective = vocabulary_of(tiny_tokenizer), TranslationLM()
    short, long = (rows_of(tiny_tokenizer, tmp_path / f"shards-{n}", n) for n in (40, 56))
    with torch.no_grad():
        losses = [objective.loss(model, objective.corrupt(rows, vocabulary, 0)).item() for rows in (short, long)]
        batch = objective.corrupt(short, vocabulary, 0)
        other = {**batch, "input_ids": batch["input_ids"].clone()}
        row, start = 0, int(short.second_start[0])
        other["input_ids"][row, start : start + 3] = tiny_tokenizer.convert_tokens_to_ids("light")
        changed = objective.loss(model, other).item()
    assert np.isclose(losses[0], losses[1], rtol=1e-4), "the same pairs, with more padding"
    assert not np.isclose(losses[0], changed, rtol=1e-7), "predictions in one language read the other"
