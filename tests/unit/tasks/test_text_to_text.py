"""Text-to-text: templates, label words, and predictions from generated texts."""

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


def spec_of(tokenizer, max_length=64, family="encoder-decoder") -> InputSpec:
    return InputSpec(tokenizer, family, max_length)


def source_of(task, tokenizer, row, max_length=64, family="encoder-decoder") -> str:
    """The source of one row, as the model reads it."""
    examples = Examples({name: [value] for name, value in row.items()}, [None])
    (feature,) = task.encode(examples, spec_of(tokenizer, max_length, family))
    assert len(feature["input_ids"]) <= max_length
    return tokenizer.decode(feature["input_ids"], skip_special_tokens=True)


def read(task, tokenizer, text, words=0):
    """The prediction in a generated text."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return task.decode([ids], [{"words": words}], spec_of(tokenizer))[0]


@pytest.fixture(scope="module")
def bpe(tiny_tokenizers):
    return tiny_tokenizers["bpe"]


def test_the_columns_come_from_the_template():
    task = task_of(template="mnli {premise} so {hypothesis}: {premise} {{or}} not?")
    assert [column.name for column in task.columns("train")] == ["premise", "hypothesis", "label"]
    assert columns_of("{customer rating}") == ["customer rating"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no column", "has no column"),
        ("{}", "not a column name"),
        ("{text.upper}", "not a column name"),
        ("{text[0]}", "not a column name"),
        ("{text!r}", "not a column name"),
        ("{text:>30}", "not a column name"),
        ("{text", "expected '}'"),
    ],
)
def test_an_invalid_template_is_rejected(template, message):
    with pytest.raises(ValidationError, match=message):
        task_of(template=template)


def test_the_template_is_filled_with_the_columns(bpe):
    row = {"a": "God", "b": 7, "c": ["heaven", "earth"]}
    assert source_of(task_of(template="{{x}} {b}. {a}: {c}"), bpe, row) == "{x} 7. God: (a) heaven (b) earth"
    words = task_of(template="{c}", gold="labels")
    assert source_of(words, bpe, {"c": ["heaven", "earth"]}) == "heaven earth"
    assert source_of(task_of(template="{0} {a}"), bpe, {"0": "one", "a": "two"}) == "one two"


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 60), st.integers(0, 80))
def test_the_longest_column_is_truncated_first(bpe, max_length, length):
    """The question and the rest of the template stay complete as long as the longest column is not empty."""
    task = task_of(template="ask {question} of {context} answer:")
    row = {"question": "who made it", "context": "earth " * length}
    source = source_of(task, bpe, row, max_length)
    assert source.startswith("ask who made it of") and source.endswith("answer:")
    assert source_of(task, bpe, row, 2 * max_length, "decoder").replace("earth ", "") == source.replace("earth ", "")
    assert source_of(task, bpe, row, 512).count("earth") == length
    assert len(source_of(task, bpe, {"question": "who " * 90, "context": "earth " * length}, 20)) > 0


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=80) | st.lists(st.sampled_from(["é", "北", "🙂", " ", "\n", "God"]), max_size=60).map("".join)
)
def test_any_text_is_truncated_to_fit(tiny_tokenizers, kind, text):
    """Truncation ends even with characters of several tokens, or characters that a tokenizer drops."""
    source = source_of(task_of(template="ask {text} now"), tiny_tokenizers[kind], {"text": text}, 24)
    assert "now" in source


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("labels", [["b", "a"], [0, 1, 2], [True, False], [0.5, 2.0]])
def test_words_are_read_back_as_labels_of_the_same_type(kind, labels, tiny_tokenizers):
    names = ["good news", "Bad-News", "neither"]
    task = task_of(labels, words=dict(zip(labels, names, strict=False)))
    tokenizer = tiny_tokenizers[kind]
    for label, word in zip(labels, names, strict=False):
        prediction = read(task, tokenizer, word)
        assert prediction == label and type(prediction) is type(label)
    for text in ("", "good", "good news indeed", "something else"):
        assert read(task, tokenizer, text) not in labels
    assert type(read(task, tokenizer, "nothing")) in (str, int, float)


def test_a_wrong_text_counts_as_a_wrong_label():
    """The fallback is comparable with labels of any type."""
    from headstart.evaluation.labels import accuracy, macro_f1

    for labels in (["b", "a"], [0, 1], [False, True]):
        task = task_of(labels)
        assert accuracy(labels, [labels[0], task.cast.fallback]) == 0.5
        assert macro_f1(labels, [labels[0], task.cast.fallback]) < 1


def test_by_default_labels_are_their_own_words(bpe):
    task = task_of(["entailment", "neutral"])
    assert task.cast.write("neutral") == "neutral" and read(task, bpe, "entailment") == "entailment"


def test_a_label_without_a_word_is_reported():
    with pytest.raises(DataError, match=r"d\.csv has the label 2, but task\.words has no word for it"):
        task_of([0, 1, 2], words={0: "no", 1: "yes"})


def test_words_that_a_tokenizer_cannot_distinguish_are_rejected(tiny_tokenizers):
    task = task_of([0, 1], words={0: "北", 1: "京"})
    rows = Examples({"text": ["x"]}, [0])
    with pytest.raises(RecipeError, match=r"cannot distinguish the words '北' and '京'"):
        task.encode(rows, spec_of(tiny_tokenizers["wordpiece"]))
    task.encode(rows, spec_of(tiny_tokenizers["bpe"]))


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(3.75, 0.2, "3.8"), (0.1, 0.2, "0"), (5.0, 0.2, "5"), (-1.26, 0.5, "-1.5"), (12.3, 1, "12")],
)
def test_numbers_are_rounded_to_steps(value, step, text):
    assert task_of(gold="number", step=step).cast.write(value) == text


def test_numbers_are_read_back_and_other_texts_are_the_mean(bpe):
    task = task_of([1.0, 2.0, 6.0], gold="number")
    assert read(task, bpe, "3.8") == 3.8 and read(task, bpe, "-1.5") == -1.5
    assert task.cast.read("3. 8", str, 0) == 3.8, "as WordPiece decodes it"
    for text in ("", "three", "1e999", "nan"):
        assert read(task, bpe, text) == 3.0


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_tags_are_read_back_word_by_word(kind, tiny_tokenizers):
    tags = ["B-PER", "I-PER", "O", "B-LOC"]
    task = task_of([[*tags, "O"]], gold="labels")
    tokenizer = tiny_tokenizers[kind]
    assert task.metrics() == ("seqeval_f1", "token_accuracy")
    assert read(task, tokenizer, "B-PER I-PER O B-LOC", 4) == tags
    assert read(task, tokenizer, "B-PER", 3) == ["B-PER", "O", "O"], "missing tags become the most common one"
    assert read(task, tokenizer, "O O O O O", 2) == ["O", "O"], "extra tags are dropped"
    assert read(task, tokenizer, "Or B-LOC", 2)[1:] == ["B-LOC"], "any other word counts as one tag"
    assert read(task, tokenizer, "", 1) == ["O"]


def test_tags_of_several_words_are_rejected():
    with pytest.raises(RecipeError, match=r"one word in task\.words"):
        task_of([["a", "b"]], gold="labels", words={"a": "two words", "b": "one"})


def test_the_first_answer_is_the_target(bpe):
    task = task_of(gold="answers", template="question: {question} context: {context}", target="answers")
    assert task.cast.write({"text": ["God", "the Lord"], "answer_start": [0, 9]}) == "God"
    assert task.cast.write({"text": [], "answer_start": []}) == "" and read(task, bpe, "God") == "God"
    assert task.metrics() == ("squad_f1", "squad_exact_match")


def test_a_metric_for_other_gold_values_is_rejected():
    with pytest.raises(ValidationError, match=r"metric is 'bleu', but gold is 'label'. Choose one of accuracy"):
        task_of(metric="bleu")
    assert task_of(["a", "b"], metric="matthews").metrics()[0] == "matthews"


def test_the_state_restores_a_task(bpe):
    task = task_of([3, 1], words={1: "one", 3: "three"})
    restored = task_of(words={1: "one", 3: "three"})
    restored.restore(task.state())
    assert read(restored, bpe, "three") == 3 and read(restored, bpe, "none") == 0
