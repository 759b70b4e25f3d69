"""The causal LM objective: predicted tokens and the end of a text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from headstart.backbones.decoder import Decoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.causal_lm import CausalLM

SIZE = 500


def synthetic_vocabulary() -> Vocabulary:
    special = np.arange(SIZE) < 5
    return Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=4, special=special, starts_word=np.ones(SIZE, dtype=bool))


def test_rows_start_with_cls_and_do_not_end_with_sep():
    shape = CausalLM().row_shape(128)
    assert (shape.length, shape.add_cls, shape.add_sep, shape.separate_documents) == (128, True, False, True)


def test_every_token_except_the_first_is_predicted_including_sep():
    row = np.asarray([[2, 10, 11, 3, 12, 1, 13]])  # 1 is the unknown token
    batch = CausalLM().corrupt(Rows(row, [Sample(0, 0)]), synthetic_vocabulary(), 0)
    assert (batch["input_ids"].numpy() == row).all()
    assert batch["labels"].tolist() == [[-100, 10, 11, 3, 12, -100, 13]]
    assert CausalLM().weight(batch) == 5
    assert CausalLM().tokens(batch) == 7
    assert CausalLM().as_inputs(batch).keys() == {"input_ids", "labels"}


def test_first_token_is_not_predicted_even_if_it_is_not_special():
    batch = CausalLM().corrupt(Rows(np.asarray([[10, 11, 12]]), [Sample(0, 0)]), synthetic_vocabulary(), 0)
    assert batch["labels"].tolist() == [[-100, 11, 12]]


def test_loss_equals_that_of_the_plain_model():
    torch.manual_seed(0)
    model = Decoder(Decoder.Config(size="tiny")).build(synthetic_vocabulary(), 32, "AutoModelForCausalLM").eval()
    ids = np.random.default_rng(0).integers(1, SIZE, size=(4, 32))
    ids[:, 0] = 2
    batch = CausalLM(chunk=10).corrupt(Rows(ids, [Sample(0, row) for row in range(4)]), synthetic_vocabulary(), 0)
    with torch.no_grad():
        ours = CausalLM(chunk=10).loss(model, batch).item() / CausalLM().weight(batch)
        theirs = model(**CausalLM().as_inputs(batch)).loss.item()
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_collator_keeps_the_final_sep_and_does_not_predict_padding(verses, tiny_tokenizer):
    examples = [{"input_ids": tiny_tokenizer(text)["input_ids"]} for text in verses[:6]]
    batch = CausalLM().collator(tiny_tokenizer)(examples)
    special = vocabulary_of(tiny_tokenizer).special
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        assert batch["attention_mask"][row].sum() == length
        assert batch["labels"][row, length - 1] == tiny_tokenizer.sep_token_id
        assert (batch["labels"][row, length:] == -100).all()
        assert (batch["labels"][row] != -100).sum() == (~special[example["input_ids"]]).sum() + 1


def test_invalid_settings_raise():
    with pytest.raises(ValidationError):
        CausalLM(chunk=0)
