"""Objectives on sentence pairs: segments, labels, masks and the summed loss."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AlbertForPreTraining, BertForPreTraining

from headstart.backbones.encoder import Encoder
from headstart.core.data import Document, Rows, Sample, Vocabulary
from headstart.core.errors import DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives import NextSentence, SentenceOrder
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.tokens.tagged_rows import TaggedRows

PAD, CLS, SEP, MASK, SPECIAL, SIZE = 0, 2, 3, 4, 5, 500
ENCODERS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")
OBJECTIVES = {"next_sentence": NextSentence, "sentence_order": SentenceOrder}


def synthetic_vocabulary() -> Vocabulary:
    special = np.arange(SIZE) < SPECIAL
    return Vocabulary(SIZE, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=special, starts_word=~special)


def synthetic_rows(count: int, length: int, seed: int = 0, short: bool = True) -> Rows:
    """Return rows in which tokens of A are even, of B odd, of negative_ids above 250; with `short`, lengths vary."""
    rng = np.random.default_rng(seed)
    ids, negative_ids = np.full((count, length), PAD), np.full((count, length), PAD)
    second = np.zeros(count, dtype=np.int64)
    for row in range(count):
        room = rng.integers(2, length - 2) if short else length - 3
        first = rng.integers(1, room)
        a, b = rng.integers(3, 125, size=first) * 2, rng.integers(3, 124, size=room - first) * 2 + 1
        ids[row, : room + 3] = [CLS, *a, SEP, *b, SEP]
        second[row] = first + 2
        size = rng.integers(1, length + 1) if short else length
        negative_ids[row, :size] = rng.integers(251, SIZE, size=size)
    return Rows(ids, [Sample(0, index) for index in range(count)], (), second, negative_ids)


def segments(ids: np.ndarray) -> tuple[list[int], list[int]]:
    ends = np.flatnonzero(ids == SEP)
    assert ids[0] == CLS and len(ends) == 2 and (ids[ends[1] + 1 :] == PAD).all()
    return ids[1 : ends[0]].tolist(), ids[ends[0] + 1 : ends[1]].tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_token_of_a_language_stays_first_whatever_the_label(name):
    tag = 4
    vocabulary = dataclasses.replace(synthetic_vocabulary(), mask=1, added={"<pt>": tag})
    plain = synthetic_rows(40, 32, short=False)
    rows = TaggedRows(FixedRows(plain), tag, vocabulary).rows(plain.samples)
    batch = OBJECTIVES[name](masked_lm=False).corrupt(rows, vocabulary, 0)
    assert set(batch["sentence_labels"].tolist()) == {0, 1}
    assert (batch["input_ids"][:, :2] == torch.tensor([CLS, tag])).all() and (batch["input_ids"] == tag).sum() == 40


@dataclasses.dataclass
class FixedRows:
    """A source of the same rows, whatever is asked for."""

    found: Rows

    def rows(self, samples: list[Sample]) -> Rows:
        return self.found


@pytest.mark.parametrize("name", OBJECTIVES)
@given(length=st.integers(8, 64), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_segments_match_their_labels(name, length, seed):
    rows = synthetic_rows(6, length, seed)
    batch = OBJECTIVES[name](masked_lm=False).corrupt(rows, synthetic_vocabulary(), seed)
    assert batch["input_ids"].shape == rows.ids.shape
    for row in range(6):
        first, second = segments(rows.ids[row])
        negative = rows.negative_ids[row][rows.negative_ids[row] != PAD].tolist()
        shown, label = segments(batch["input_ids"][row].numpy()), int(batch["sentence_labels"][row])
        if name == "sentence_order":
            assert shown == ((second, first) if label else (first, second))
        else:
            size = min(len(second), len(negative))
            assert shown == (first, (negative if label else second)[:size]), "the length of B does not reveal the label"
        used = len(shown[0]) + len(shown[1]) + 3
        assert batch["attention_mask"][row].tolist() == [1] * used + [0] * (length - used)
        types = [0] * (len(shown[0]) + 2) + [1] * (len(shown[1]) + 1) + [0] * (length - used)
        assert batch["token_type_ids"][row].tolist() == types


@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_of_the_labels_are_1(name):
    labels = OBJECTIVES[name](masked_lm=False).corrupt(synthetic_rows(4000, 16), synthetic_vocabulary(), 0)[
        "sentence_labels"
    ]
    assert abs(labels.float().mean().item() - 0.5) < 5 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize("name", OBJECTIVES)
@given(length=st.integers(8, 64), rate=st.floats(0.05, 0.6), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_masks_do_not_depend_on_padding(name, length, rate, seed):
    rows, vocabulary = synthetic_rows(5, length, seed), synthetic_vocabulary()
    plain = OBJECTIVES[name](masked_lm=False).corrupt(rows, vocabulary, seed)
    batch = OBJECTIVES[name](rate=rate).corrupt(rows, vocabulary, seed)
    assert torch.equal(batch["sentence_labels"], plain["sentence_labels"])
    assert batch["positions"].shape == (5, max(1, round(rate * length)))
    for row in range(5):
        original, used = plain["input_ids"][row], int(plain["attention_mask"][row].sum())
        selected = batch["positions"][row][batch["weights"][row] > 0]
        assert len(selected) == min(max(1, round(rate * used)), used - 3)
        assert torch.equal(batch["labels"][row][batch["weights"][row] > 0], original[selected])
        assert (original[selected] >= SPECIAL).all()
        rest = torch.ones(length, dtype=torch.bool)
        rest[selected] = False
        assert torch.equal(batch["input_ids"][row][rest], original[rest])


@pytest.fixture(scope="module")
def text(verses, tiny_tokenizer, tmp_path_factory):
    """Shards of documents of twenty verses each."""
    folder = tmp_path_factory.mktemp("text")
    texts = [" ".join(verses[start : start + 20]) for start in range(0, 1200, 20)]
    shards.write((Document(str(number), text) for number, text in enumerate(texts)), tiny_tokenizer, folder)
    return shards.Shards(folder)


def stream_of(text):
    return text.read(0, text.tokens).tolist()


def test_negatives_are_from_another_document_and_positives_follow(text, tiny_tokenizer):
    objective, vocabulary = NextSentence(masked_lm=False), vocabulary_of(tiny_tokenizer)
    source = cut(text, vocabulary, objective.row_shape(96))
    rows = source.rows([Sample(0, index) for index in range(len(source))])
    batch = objective.corrupt(rows, vocabulary, 0)
    ends = [*text.documents[1:].tolist(), text.tokens]
    documents = [stream_of(text)[start:stop] for start, stop in zip(text.documents.tolist(), ends, strict=True)]
    sentences = set(text.sentences.tolist())

    def find(part, document):
        """Return the index of a part in a document, or -1."""
        whole = documents[document]
        return next((at for at in range(len(whole) - len(part) + 1) if whole[at : at + len(part)] == part), -1)

    checked = {0: 0, 1: 0}
    for row in range(0, len(source), 7):
        first, second = segments(batch["input_ids"][row].numpy())
        label = int(batch["sentence_labels"][row])
        if len(first) < 20 or len(second) < 20:
            continue  # such a short part may occur twice
        sources = [number for number in range(len(documents)) if find(first, number) >= 0]
        assert len(sources) == 1
        follows = documents[sources[0]][find(first, sources[0]) + len(first) :][: len(second)] == second
        assert follows == (label == 0)
        if label:
            others = [number for number in range(len(documents)) if find(second, number) >= 0]
            assert others and sources[0] not in others
            assert find(second, others[0]) + int(text.documents[others[0]]) in sentences
        checked[label] += 1
    assert min(checked.values()) > 15


def test_positives_and_negatives_of_real_text_are_equally_long(text, tiny_tokenizer):
    objective, vocabulary = NextSentence(masked_lm=False), vocabulary_of(tiny_tokenizer)
    source = cut(text, vocabulary, objective.row_shape(96))
    lengths, labels = [], []
    for epoch in range(4):
        rows = source.rows([Sample(epoch, index) for index in range(len(source))])
        batch = objective.corrupt(rows, vocabulary, 0)
        lengths.append(batch["attention_mask"].sum(1).numpy())
        labels.append(batch["sentence_labels"].numpy())
    length, label = np.concatenate(lengths), np.concatenate(labels)
    spread = length.std() * math.sqrt(1 / label.sum() + 1 / (1 - label).sum())
    assert abs(length[label == 1].mean() - length[label == 0].mean()) < 4 * max(spread, 0.1)


def build(objective, kind, vocabulary=None):
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind=kind, size="tiny", dropout=0.0))
    return objective.assemble(
        lambda auto, part="", scale=1.0, **changes: encoder.build(
            vocabulary or synthetic_vocabulary(), 64, auto, scale, **changes
        )
    ).eval()


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("masked_lm", [True, False])
def test_loss_is_the_mean_over_tokens_plus_the_mean_over_rows(kind, masked_lm):
    """On rows without padding, against full logits of the plain network, with segment ids if it has them."""
    objective = NextSentence(masked_lm=masked_lm)
    module = build(objective, kind)
    batch = objective.corrupt(synthetic_rows(8, 32, short=False), synthetic_vocabulary(), 0)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if kind in ("bert", "roberta", "albert", "electra"):
        inputs["token_type_ids"] = batch["token_type_ids"]
    with torch.no_grad():
        loss = objective.loss(module, batch).item() / objective.weight(batch)
        measured = {name: value / objective.weight(batch) for name, value in objective.measure(module, batch).items()}
        output = module.network(**inputs)
        if not masked_lm:
            logits, masked = output.logits, 0.0
        else:
            own = {"bert": "seq_relationship_logits", "albert": "sop_logits"}
            token_logits = output.prediction_logits if kind in own else output.logits
            rows, slots = torch.nonzero(batch["weights"] > 0, as_tuple=True)
            columns = batch["positions"][rows, slots]
            masked = F.cross_entropy(token_logits[rows, columns], batch["labels"][rows, slots]).item()
            states = module.network.base_model(**inputs)[0]
            logits = output[own[kind]] if kind in own else module.head(states[:, 0])
    sentence = F.cross_entropy(logits, batch["sentence_labels"]).item()
    right = (logits.argmax(-1) == batch["sentence_labels"]).float().mean().item()
    assert loss == pytest.approx(masked + sentence, rel=1e-5)
    assert measured["loss"] == pytest.approx(loss, rel=1e-5)
    assert measured["sentence_accuracy" if masked_lm else "accuracy"] == pytest.approx(right)
    if masked_lm:
        assert measured["masked_loss"] == pytest.approx(masked, rel=1e-5)
        assert measured["sentence_loss"] == pytest.approx(sentence, rel=1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_artifact_is_a_plain_network_with_transformers_heads(kind):
    together, alone = build(SentenceOrder(), kind), build(SentenceOrder(masked_lm=False), kind)
    expected = {"bert": BertForPreTraining, "albert": AlbertForPreTraining}
    if kind in expected:
        assert type(together.network) is expected[kind]
        assert list(SentenceOrder().parts(together)) == [""]
    else:
        assert type(together.network).__name__.endswith("ForMaskedLM")
        assert list(SentenceOrder().parts(together)) == ["", "sentence_head"]
    assert type(alone.network).__name__.endswith("ForSequenceClassification")
    assert alone.network.config.num_labels == 2
    assert list(SentenceOrder().parts(alone)) == [""]


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_parameter_is_trained_without_masked_lm(kind):
    """A few steps on rows whose label follows from the tokens of the second segment."""
    objective = NextSentence(masked_lm=False)
    module = build(objective, kind).train()
    batch = objective.corrupt(synthetic_rows(16, 24, short=False), synthetic_vocabulary(), 0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    for step in range(25):
        loss = objective.loss(module, batch) / objective.weight(batch)
        loss.backward()
        if not step:
            first = loss.item()
            assert not [name for name, parameter in module.named_parameters() if parameter.grad is None]
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.5 * first


def pair(tokenizer, first, second, other=None):
    example = {"input_ids": tokenizer(first, second)["input_ids"][:62]}
    if example["input_ids"][-1] != tokenizer.sep_token_id:
        example["input_ids"].append(tokenizer.sep_token_id)
    return (
        example
        if other is None
        else example | {"negative_input_ids": tokenizer(other, add_special_tokens=False)["input_ids"]}
    )


@pytest.mark.parametrize("masked_lm", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
def test_collated_batches_give_the_same_loss(side, masked_lm, verses, tiny_tokenizer):
    objective = NextSentence(masked_lm=masked_lm)
    before, tiny_tokenizer.padding_side = tiny_tokenizer.padding_side, side
    try:
        collator = objective.collator(tiny_tokenizer)
        texts = [text.split()[: 8 + 2 * number] for number, text in enumerate(verses[:18])]
        examples = [
            pair(tiny_tokenizer, *(" ".join(text) for text in texts[start : start + 3])) for start in range(0, 18, 3)
        ]
        together, apart = collator(examples), [collator([example]) for example in examples]
        # ModernBERT's positions are relative, so the output does not depend on the offset of a row.
        module = build(objective, "modernbert", collator.vocabulary)
    finally:
        tiny_tokenizer.padding_side = before
    assert set(together["sentence_labels"].tolist()) == {0, 1}
    with torch.no_grad():
        loss = module(**together).loss.item()
        counts = [int((batch["labels"] != -100).sum()) if masked_lm else 1 for batch in apart]
        losses = [module(**batch).loss.item() for batch in apart]
    assert loss == pytest.approx(np.average(losses, weights=counts), rel=1e-4)


def test_examples_without_two_segments_or_negatives_raise(verses, tiny_tokenizer):
    collator = SentenceOrder().collator(tiny_tokenizer)
    with pytest.raises(DataError, match=r"tokenizer\(first, second\)"):
        collator([{"input_ids": tiny_tokenizer(verses[0])["input_ids"]}])
    assert collator([pair(tiny_tokenizer, "In the beginning", "God created")])["sentence_labels"].shape == (1,)
    with pytest.raises(DataError, match="negative_input_ids"):
        NextSentence().collator(tiny_tokenizer)([pair(tiny_tokenizer, "In the beginning", "God created")])
    packed = Rows(np.full((1, 16), 9), [Sample(0, 0)])
    with pytest.raises(DataError, match="two segments"):
        NextSentence().corrupt(packed, synthetic_vocabulary(), 0)
