"""Any task as text: templates, label words, and what is read out of what was written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError, RecipeError
from headstart.tasks.text_to_text import TextToText, columns_of


def task_of(labels=None, **settings) -> TextToText:
    task = TextToText(TextToText.Config.model_validate(settings))
    if labels is not None:
        task.fit_labels(Examples({"text": [""] * len(labels)}, labels, "d.csv"))
    return task


def reading_of(tokenizer, max_length=64, family="encoder-decoder") -> InputSpec:
    return InputSpec(tokenizer, family, max_length)


def source_of(task, tokenizer, row, max_length=64, family="encoder-decoder") -> str:
    """What the model reads of one row."""
    examples = Examples({name: [value] for name, value in row.items()}, [None])
    (feature,) = task.encode(examples, reading_of(tokenizer, max_length, family))
    assert len(feature["input_ids"]) <= max_length
    return tokenizer.decode(feature["input_ids"], skip_special_tokens=True)


def read(task, tokenizer, text, words=0):
    """The prediction that a written text stands for."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return task.decode([ids], [{"words": words}], reading_of(tokenizer))[0]


@pytest.fixture(scope="module")
def bpe(tiny_tokenizers):
    return tiny_tokenizers["bpe"]


def test_a_template_names_its_columns():
    task = task_of(template="mnli {premise} so {hypothesis}: {premise} {{or}} not?")
    assert [column.name for column in task.columns("train")] == ["premise", "hypothesis", "label"]
    assert columns_of("{customer rating}") == ["customer rating"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no column", "names no column"),
        ("{}", "no name of a column"),
        ("{text.upper}", "no name of a column"),
        ("{text[0]}", "no name of a column"),
        ("{text!r}", "no name of a column"),
        ("{text:>30}", "no name of a column"),
        ("{text", "expected '}'"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(template, message):
    with pytest.raises(ValidationError, match=message):
        task_of(template=template)


def test_columns_are_put_in_their_places(bpe):
    row = {"a": "God", "b": 7, "c": ["heaven", "earth"]}
    assert source_of(task_of(template="{{x}} {b}. {a}: {c}"), bpe, row) == "{x} 7. God: (a) heaven (b) earth"
    words = task_of(template="{c}", gold="labels")
    assert source_of(words, bpe, {"c": ["heaven", "earth"]}) == "heaven earth"
    assert source_of(task_of(template="{0} {a}"), bpe, {"0": "one", "a": "two"}) == "one two"


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 60), st.integers(0, 80))
def test_what_is_too_long_is_cut_out_of_the_longest_column(bpe, max_length, length):
    """Question and cue stay whole as long as the longest column has something to give."""
    task = task_of(template="ask {question} of {context} answer:")
    row = {"question": "who made it", "context": "earth " * length}
    found = source_of(task, bpe, row, max_length)
    assert found.startswith("ask who made it of") and found.endswith("answer:")
    assert source_of(task, bpe, row, 2 * max_length, "decoder").replace("earth ", "") == found.replace("earth ", "")
    assert source_of(task, bpe, row, 512).count("earth") == length
    assert len(source_of(task, bpe, {"question": "who " * 90, "context": "earth " * length}, 20)) > 0


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=80) | st.lists(st.sampled_from(["é", "北", "🙂", " ", "\n", "God"]), max_size=60).map("".join)
)
def test_any_text_is_cut_until_it_fits(tiny_tokenizers, kind, text):
    """Characters of several tokens, blanks and marks that a tokenizer drops do not keep it from ending."""
    source = source_of(task_of(template="ask {text} now"), tiny_tokenizers[kind], {"text": text}, 24)
    assert "now" in source


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("labels", [["b", "a"], [0, 1, 2], [True, False], [0.5, 2.0]])
def test_labels_come_back_from_their_words_in_their_own_type(kind, labels, tiny_tokenizers):
    names = ["good news", "Bad-News", "neither"]
    task = task_of(labels, words=dict(zip(labels, names, strict=False)))
    tokenizer = tiny_tokenizers[kind]
    for label, word in zip(labels, names, strict=False):
        found = read(task, tokenizer, word)
        assert found == label and type(found) is type(label)
    for text in ("", "good", "good news indeed", "something else"):
        assert read(task, tokenizer, text) not in labels
    assert type(read(task, tokenizer, "nothing")) in (str, int, float)


def test_a_wrong_text_compares_with_the_labels():
    """Predictions that are no label count as wrong, whatever type labels have."""
    from headstart.evaluation.labels import accuracy, macro_f1

    for labels in (["b", "a"], [0, 1], [False, True]):
        task = task_of(labels)
        assert accuracy(labels, [labels[0], task.cast.fallback]) == 0.5
        assert macro_f1(labels, [labels[0], task.cast.fallback]) < 1


def test_labels_are_their_own_words_unless_told_otherwise(bpe):
    task = task_of(["entailment", "neutral"])
    assert task.cast.write("neutral") == "neutral" and read(task, bpe, "entailment") == "entailment"


def test_a_label_without_a_word_is_named():
    with pytest.raises(DataError, match=r"d\.csv has the label 2, for which task\.words has no word"):
        task_of([0, 1, 2], words={0: "no", 1: "yes"})


def test_words_that_a_tokenizer_cannot_tell_apart_are_refused(tiny_tokenizers):
    task = task_of([0, 1], words={0: "北", 1: "京"})
    rows = Examples({"text": ["x"]}, [0])
    with pytest.raises(RecipeError, match=r"'北' and '京' are one to the tokenizer"):
        task.encode(rows, reading_of(tiny_tokenizers["wordpiece"]))
    task.encode(rows, reading_of(tiny_tokenizers["bpe"]))


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(3.75, 0.2, "3.8"), (0.1, 0.2, "0"), (5.0, 0.2, "5"), (-1.26, 0.5, "-1.5"), (12.3, 1, "12")],
)
def test_numbers_are_written_in_steps(value, step, text):
    assert task_of(gold="number", step=step).cast.write(value) == text


def test_numbers_are_read_back_and_other_texts_are_the_mean(bpe):
    task = task_of([1.0, 2.0, 6.0], gold="number")
    assert read(task, bpe, "3.8") == 3.8 and read(task, bpe, "-1.5") == -1.5
    assert task.cast.read("3. 8", str, 0) == 3.8, "as WordPiece spells it"
    for text in ("", "three", "1e999", "nan"):
        assert read(task, bpe, text) == 3.0


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_tags_are_read_back_word_by_word(kind, tiny_tokenizers):
    tags = ["B-PER", "I-PER", "O", "B-LOC"]
    task = task_of([[*tags, "O"]], gold="labels")
    tokenizer = tiny_tokenizers[kind]
    assert task.metrics() == ("seqeval_f1", "token_accuracy")
    assert read(task, tokenizer, "B-PER I-PER O B-LOC", 4) == tags
    assert read(task, tokenizer, "B-PER", 3) == ["B-PER", "O", "O"], "too few: the commonest"
    assert read(task, tokenizer, "O O O O O", 2) == ["O", "O"], "too many: cut"
    assert read(task, tokenizer, "Or B-LOC", 2)[1:] == ["B-LOC"], "what is no tag stands for one"
    assert read(task, tokenizer, "", 1) == ["O"]


def test_tags_of_several_words_are_refused():
    with pytest.raises(RecipeError, match=r"one word in task\.words"):
        task_of([["a", "b"]], gold="labels", words={"a": "two words", "b": "one"})


def test_answers_are_written_as_they_stand(bpe):
    task = task_of(gold="answers", template="question: {question} context: {context}", target="answers")
    assert task.cast.write({"text": ["God", "the Lord"], "answer_start": [0, 9]}) == "God"
    assert task.cast.write({"text": [], "answer_start": []}) == "" and read(task, bpe, "God") == "God"
    assert task.metrics() == ("squad_f1", "squad_exact_match")


def test_a_metric_of_other_gold_is_refused():
    with pytest.raises(ValidationError, match=r"metric is 'bleu', and gold is 'label'. Choose one of accuracy"):
        task_of(metric="bleu")
    assert task_of(["a", "b"], metric="matthews").metrics()[0] == "matthews"


def test_what_was_learnt_travels(bpe):
    task = task_of([3, 1], words={1: "one", 3: "three"})
    again = task_of(words={1: "one", 3: "three"})
    again.restore(task.state())
    assert read(again, bpe, "three") == 3 and read(again, bpe, "none") == 0
