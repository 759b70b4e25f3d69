"""Prompting for generation: examples in the prompt, and the answer in what a model writes."""

from __future__ import annotations

import copy

import pytest

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.prompt_text import PromptText

TRAIN = Examples({"text": [f"verse {letter}" for letter in "abcdefgh"]}, ["one", "two"] * 4, "train.csv")
ROW = Examples({"text": ["the sea"]}, ["one"])


def task_of(train: Examples = TRAIN, **settings) -> PromptText:
    task = PromptText(PromptText.Config.model_validate({"template": "Q: {text}\nA:", **settings}))
    task.fit_labels(train)
    return task


def prompt_of(task: PromptText, spec: InputSpec, rows: Examples = ROW) -> str:
    (feature,) = task.encode(rows, spec)
    assert len(feature["input_ids"]) <= spec.max_length
    return spec.tokenizer.decode(feature["input_ids"])


@pytest.fixture(scope="module")
def bpe(tiny_tokenizers):
    return tiny_tokenizers["bpe"]


def test_the_examples_and_their_answers_come_before_the_row(bpe):
    task = task_of(shots=2)
    (first, one), (second, two) = task.shown
    expected = f"{first} {one}\n\n{second} {two}\n\nQ: the sea\nA:"
    assert first.startswith("Q: verse") and first.endswith("\nA:")
    assert prompt_of(task, InputSpec(bpe, "decoder", 256)) == f"{bpe.cls_token}{expected}"


def test_the_seed_selects_the_examples_and_the_state_restores_them():
    task = task_of(shots=3)
    shown = []
    for seed in (0, 0, 1):
        task.show(TRAIN, seed)
        shown.append(task.shown)
    assert shown[0] == shown[1] != shown[2]
    again = PromptText(task.config)
    again.restore(task.state())
    assert again.shown == task.shown


def test_a_long_row_is_truncated_and_the_examples_are_not(bpe):
    task, spec = task_of(shots=1, max_target=8), InputSpec(bpe, "decoder", 96)
    prompt = prompt_of(task, spec, Examples({"text": ["the sea and " * 50]}, ["one"]))
    assert task.shown[0][0] in prompt and prompt.endswith("\nA:")
    with pytest.raises(DataError, match=r"the template and its examples take \d+ tokens.*lower task\.shots"):
        task_of(shots=8).encode(ROW, InputSpec(bpe, "decoder", 32))


def test_an_answer_ends_at_the_stop_text(bpe):
    spec, ids = InputSpec(bpe, "decoder", 64), bpe(" heaven\nQ: earth", add_special_tokens=False)["input_ids"]
    assert task_of().decode([ids], [{"words": 0}], spec) == ["heaven"]
    assert task_of(stop="").decode([ids], [{"words": 0}], spec) == ["heaven\nQ: earth"]


@pytest.mark.parametrize("blank", [None, "none"])
def test_an_encoder_decoder_fills_the_sentinel(bpe, blank):
    tokenizer = copy.deepcopy(bpe)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<extra_id_0>", "<extra_id_1>"]})
    spec, task = InputSpec(tokenizer, "encoder-decoder", 64), task_of(blank=blank)
    assert ("A: <extra_id_0>" in prompt_of(task, spec)) is (blank is None)
    ids = tokenizer("<extra_id_0> heaven<extra_id_1> earth", add_special_tokens=False)["input_ids"]
    assert task.decode([ids], [{"words": 0}], spec) == ["heaven" if blank is None else "heaven earth"]


def test_answers_are_those_of_squad(bpe):
    train = Examples({"text": ["a"]}, [{"text": ["heaven"], "answer_start": [0]}])
    task = task_of(train, gold="answers", shots=1)
    assert task.shown[0][1] == "heaven" and task.metrics()[0] == "squad_f1"
