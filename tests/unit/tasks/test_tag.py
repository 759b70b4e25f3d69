"""Tagging: every word one tag, whatever the tokenizer makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.source import CheckpointFolder
from headstart.tasks.tag import Tag, word_of_tokens

WORDS = ["In", "the", "beginning", "don't", "Nebuchadnezzar", "naïve", "2,000", "🥊", "New York", "x"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
sentences = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(TAGS)), min_size=1, max_size=12)


def task_of(rows=None, **given_settings) -> Tag:
    task = Tag(Tag.Config.model_validate(given_settings))
    task.fit_labels(rows if rows is not None else examples([list(zip(WORDS[:5], [*TAGS, "O"], strict=True))]))
    return task


def examples(rows) -> Examples:
    return Examples({"tokens": [[w for w, _ in row] for row in rows]}, [[t for _, t in row] for row in rows], "d.jsonl")


def reading(tokenizer, family="encoder", max_length=128) -> InputSpec:
    return InputSpec(tokenizer, family, max_length)


def right(task, features):
    """Outputs of a model that is right on all that it sees."""
    labels = [[label for label, speaks in zip(f["labels"], f["speaks"], strict=True) if speaks] for f in features]
    return [np.eye(len(task.labels), dtype=np.float32)[row] for row in labels]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
@given(rows=st.lists(sentences, min_size=1, max_size=3))
@settings(deadline=None, max_examples=40)
def test_tags_come_back_whatever_the_tokenizer(tiny_tokenizers, kind, family, rows):
    task, how = task_of(), reading(tiny_tokenizers[kind], family)
    features = task.encode(examples(rows), how)
    for feature, row in zip(features, rows, strict=True):
        assert len(feature["labels"]) == len(feature["speaks"]) == len(feature["input_ids"])
        assert sum(feature["speaks"]) == len(feature["spoken"]) == len(set(feature["spoken"])) <= len(row)
        predicted = [label for label, speaks in zip(feature["labels"], feature["speaks"], strict=True) if not speaks]
        assert set(predicted) <= {-100}, "one token of a word is predicted, no other"
    decoded = task.decode(right(task, features), features, how)
    for found, feature, row in zip(decoded, features, rows, strict=True):
        unseen = [task.commonest] * len(row)
        wanted = [tag if place in feature["spoken"] else unseen[place] for place, (_, tag) in enumerate(row)]
        assert found == wanted


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1, max_size=8))
@settings(deadline=None, max_examples=80)
def test_no_text_at_all_breaks_the_alignment(tiny_tokenizers, words):
    for tokenizer in tiny_tokenizers.values():
        task = task_of()
        (feature,) = task.encode(examples([[(word, "O") for word in words]]), reading(tokenizer))
        assert feature["words"] == len(words) and feature["spoken"] == sorted(feature["spoken"])
        (tags,) = task.decode(right(task, [feature]), [feature], reading(tokenizer))
        assert tags == ["O"] * len(words)


def test_tokens_know_their_word():
    words = ["New York", "is", "big"]  # "New York is big"
    offsets = [(0, 0), (0, 3), (3, 8), (8, 11), (9, 11), (12, 13), (13, 15), (0, 0)]
    assert word_of_tokens(words, offsets) == [None, 0, 0, 1, 1, 2, 2, None]


def test_the_first_token_speaks_in_an_encoder_and_the_last_in_a_decoder(tiny_tokenizer):
    rows = examples([[("Nebuchadnezzar", "B-PER"), ("said", "O")]])
    (first,), (last,) = (task_of().encode(rows, reading(tiny_tokenizer, family)) for family in ("encoder", "decoder"))
    pieces = len(tiny_tokenizer("Nebuchadnezzar", add_special_tokens=False)["input_ids"])
    assert pieces > 2 and first["speaks"].index(1) == 1 and last["speaks"].index(1) == pieces


def test_words_beyond_the_end_get_the_commonest_tag_and_are_counted(tiny_tokenizer):
    long = [("the", "B-PER")] * 30
    task, how = task_of(examples([[("the", "O")] * 2 + [("God", "B-PER")]])), reading(tiny_tokenizer, max_length=12)
    features = task.encode(examples([long, long[:3]]), how)
    seen = len(features[0]["spoken"])
    assert 0 < seen < 30
    found = task.decode(right(task, features), features, how)
    assert found == [["B-PER"] * seen + ["O"] * (30 - seen), ["B-PER"] * 3]
    assert task.notes(features)[0].startswith(f"{30 - seen} of 33 words are tagged 'O' unseen")
    assert task.notes(features[1:]) == []


def test_a_tag_that_training_lacks_is_missed_and_not_fatal(tiny_tokenizer):
    task = task_of()
    (feature,) = task.encode(examples([[("God", "B-NEW"), ("said", "O")]]), reading(tiny_tokenizer))
    assert feature["labels"].count(-100) == len(feature["labels"]) - 1 and feature["spoken"] == [0, 1]


def test_as_many_tags_as_words_or_the_row_is_named():
    rows = Examples({"tokens": [["a"], ["b", "c"]]}, [["O"], ["O"]], "d.jsonl")
    with pytest.raises(DataError, match=r"d\.jsonl, row 2 has 2 words and 1 tags"):
        task_of(rows)
    with pytest.raises(DataError, match="single tag 'O'"):
        task_of(rows.take([0]))


def test_spans_are_judged_where_tags_spell_them():
    parts = examples([[("a", "NOUN"), ("b", "VERB")]])
    assert task_of(parts).metrics() == ("token_accuracy",)
    assert task_of().metrics() == ("seqeval_f1", "token_accuracy")
    assert task_of(metric="token_accuracy").metrics() == ("token_accuracy", "seqeval_f1")
    with pytest.raises(DataError, match="spell no spans"):
        task_of(parts, metric="seqeval_f1")


def test_the_loss_counts_words(checkpoint):
    task = task_of()
    source = CheckpointFolder(checkpoint("bert"), task, 0)
    how = source.reading(32)
    rows = examples([[("Nebuchadnezzar", "B-PER"), ("said", "O")], [("the", "O")]])
    features = task.encode(rows, how, training=True)
    batch = task.collate(features, how)
    model = source.pretrained().eval()
    assert task.weight(batch) == 3
    with torch.no_grad():
        loss, outputs = float(task.loss(model, batch)), task.predict(model, batch)
    assert [len(output) for output in outputs] == [2, 1]
    logits = torch.from_numpy(np.concatenate(outputs))
    gold = torch.tensor([task.labels.index(tag) for tag in ("B-PER", "O", "O")])
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, gold, reduction="sum").item(), rel=1e-5)
