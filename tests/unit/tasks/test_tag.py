"""Token classification: one tag per word, with any tokenizer."""

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


def spec_of(tokenizer, family="encoder", max_length=128) -> InputSpec:
    return InputSpec(tokenizer, family, max_length)


def right(task, features):
    """Outputs of a model that is right on all visible words."""
    labels = [[label for label, labeled in zip(f["labels"], f["word_mask"], strict=True) if labeled] for f in features]
    return [np.eye(len(task.labels), dtype=np.float32)[row] for row in labels]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
@given(rows=st.lists(sentences, min_size=1, max_size=3))
@settings(deadline=None, max_examples=40)
def test_tags_are_recovered_with_any_tokenizer(tiny_tokenizers, kind, family, rows):
    task, spec = task_of(), spec_of(tiny_tokenizers[kind], family)
    features = task.encode(examples(rows), spec)
    for feature, row in zip(features, rows, strict=True):
        assert len(feature["labels"]) == len(feature["word_mask"]) == len(feature["input_ids"])
        assert (
            sum(feature["word_mask"]) == len(feature["visible_words"]) == len(set(feature["visible_words"])) <= len(row)
        )
        others = [label for label, labeled in zip(feature["labels"], feature["word_mask"], strict=True) if not labeled]
        assert set(others) <= {-100}, "one token of a word has a label, no other"
    decoded = task.decode(right(task, features), features, spec)
    for tags, feature, row in zip(decoded, features, rows, strict=True):
        visible = feature["visible_words"]
        assert tags == [tag if i in visible else task.most_common for i, (_, tag) in enumerate(row)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1, max_size=8))
@settings(deadline=None, max_examples=80)
def test_any_text_is_aligned(tiny_tokenizers, words):
    for tokenizer in tiny_tokenizers.values():
        task = task_of()
        (feature,) = task.encode(examples([[(word, "O") for word in words]]), spec_of(tokenizer))
        assert feature["words"] == len(words) and feature["visible_words"] == sorted(feature["visible_words"])
        (tags,) = task.decode(right(task, [feature]), [feature], spec_of(tokenizer))
        assert tags == ["O"] * len(words)


def test_each_token_belongs_to_a_word():
    words = ["New York", "is", "big"]  # "New York is big"
    offsets = [(0, 0), (0, 3), (3, 8), (8, 11), (9, 11), (12, 13), (13, 15), (0, 0)]
    assert word_of_tokens(words, offsets) == [None, 0, 0, 1, 1, 2, 2, None]


def test_the_first_token_is_labeled_in_an_encoder_and_the_last_in_a_decoder(tiny_tokenizer):
    rows = examples([[("Nebuchadnezzar", "B-PER"), ("said", "O")]])
    (first,), (last,) = (task_of().encode(rows, spec_of(tiny_tokenizer, family)) for family in ("encoder", "decoder"))
    pieces = len(tiny_tokenizer("Nebuchadnezzar", add_special_tokens=False)["input_ids"])
    assert pieces > 2 and first["word_mask"].index(1) == 1 and last["word_mask"].index(1) == pieces


def test_truncated_words_get_the_most_common_tag_and_are_counted(tiny_tokenizer):
    long = [("the", "B-PER")] * 30
    task, spec = task_of(examples([[("the", "O")] * 2 + [("God", "B-PER")]])), spec_of(tiny_tokenizer, max_length=12)
    features = task.encode(examples([long, long[:3]]), spec)
    visible = len(features[0]["visible_words"])
    assert 0 < visible < 30
    predictions = task.decode(right(task, features), features, spec)
    assert predictions == [["B-PER"] * visible + ["O"] * (30 - visible), ["B-PER"] * 3]
    assert task.notes(features)[0].startswith(f"{30 - visible} of 33 words get the most common tag, 'O'")
    assert task.notes(features[1:]) == []


def test_a_tag_without_training_rows_is_ignored_in_the_labels(tiny_tokenizer):
    task = task_of()
    (feature,) = task.encode(examples([[("God", "B-NEW"), ("said", "O")]]), spec_of(tiny_tokenizer))
    assert feature["labels"].count(-100) == len(feature["labels"]) - 1 and feature["visible_words"] == [0, 1]


def test_unequal_numbers_of_words_and_tags_are_reported_with_the_row():
    rows = Examples({"tokens": [["a"], ["b", "c"]]}, [["O"], ["O"]], "d.jsonl")
    with pytest.raises(DataError, match=r"d\.jsonl, row 2 has 2 words, but 1 tags"):
        task_of(rows)
    with pytest.raises(DataError, match="have the tag 'O' only"):
        task_of(rows.take([0]))


def test_seqeval_needs_bio_tags():
    parts = examples([[("a", "NOUN"), ("b", "VERB")]])
    assert task_of(parts).metrics() == ("token_accuracy",)
    assert task_of().metrics() == ("seqeval_f1", "token_accuracy")
    assert task_of(metric="token_accuracy").metrics() == ("token_accuracy", "seqeval_f1")
    with pytest.raises(DataError, match="mark no spans"):
        task_of(parts, metric="seqeval_f1")


def test_the_loss_is_summed_over_words(checkpoint):
    task = task_of()
    source = CheckpointFolder(checkpoint("bert"), task, 0)
    spec = source.input_spec(32)
    rows = examples([[("Nebuchadnezzar", "B-PER"), ("said", "O")], [("the", "O")]])
    features = task.encode(rows, spec, training=True)
    batch = task.collate(features, spec)
    model = source.pretrained().eval()
    assert task.weight(batch) == 3
    with torch.no_grad():
        loss, outputs = float(task.loss(model, batch)), task.predict(model, batch)
    assert [len(output) for output in outputs] == [2, 1]
    logits = torch.from_numpy(np.concatenate(outputs))
    gold = torch.tensor([task.labels.index(tag) for tag in ("B-PER", "O", "O")])
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, gold, reduction="sum").item(), rel=1e-5)
