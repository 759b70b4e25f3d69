"""Multiple choice: one score per choice, for any number of choices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.multiple_choice import MultipleChoice
from headstart.tasks.source import CheckpointFolder

RAGGED = Examples(
    {"question": ["In the", "And God"], "choices": [["beginning", "end", "middle of the earth"], ["said", "was"]]},
    [0, 1],
    "d.jsonl",
)


def task_of(**settings) -> MultipleChoice:
    return MultipleChoice(MultipleChoice.Config.model_validate(settings))


def test_each_choice_is_read_with_the_question(tiny_tokenizer):
    features = task_of().encode(RAGGED, InputSpec(tiny_tokenizer, "encoder", 32))
    assert [len(feature["input_ids"]) for feature in features] == [3, 2]
    assert features[0]["input_ids"][2] == tiny_tokenizer("In the", "middle of the earth")["input_ids"]
    assert [feature["labels"] for feature in features] == [0, 1]


def test_each_choice_may_have_its_own_column(tiny_tokenizer):
    task, spec = (
        task_of(question="goal", choices=["sol1", "sol2"], answer="label"),
        InputSpec(tiny_tokenizer, "encoder", 32),
    )
    rows = Examples({"goal": ["In the"], "sol1": ["beginning"], "sol2": ["end"]}, [1])
    other = Examples({"question": ["In the"], "choices": [["beginning", "end"]]}, [1])
    assert task.encode(rows, spec) == task_of().encode(other, spec)
    assert [column.name for column in task.columns("test")] == ["goal", "sol1", "sol2", "label"]
    toys = task.toy_examples(["In the beginning", "God created the heaven"])
    assert all(len(feature["input_ids"]) == 2 for feature in task.encode(toys, spec))


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "deberta-v2", "albert", "electra"])
def test_every_encoder_has_the_head_and_padding_choices_are_not_computed(kind, checkpoint):
    task = task_of()
    source = CheckpointFolder(checkpoint(kind), task, 0)
    spec, model = source.input_spec(32), source.pretrained().eval()
    features = task.encode(RAGGED, spec)
    batch = task.collate(features, spec)
    batch_sizes = []
    handle = model.base_model.register_forward_pre_hook(
        lambda _, args, named: batch_sizes.append(len(args[0] if args else named["input_ids"])), with_kwargs=True
    )
    with torch.no_grad():
        logits = task.logits(model, batch)
        handle.remove()
        alone = [task.logits(model, task.collate([feature], spec))[0] for feature in features]
    assert batch_sizes == [5], "three choices and two"
    assert logits.shape == (2, 3) and logits[1, 2] == float("-inf")
    torch.testing.assert_close(logits[0], alone[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits[1, :2], alone[1], atol=1e-5, rtol=1e-4)
    expected = -torch.log_softmax(logits[0], 0)[0] - torch.log_softmax(logits[1, :2], 0)[1]
    assert task.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    outputs = task.predict(model, batch)
    assert [len(row) for row in outputs] == [3, 2]
    assert task.decode(outputs, features, spec) == [int(np.argmax(row)) for row in outputs]


def test_gradients_are_finite_with_padding_choices(checkpoint):
    task = task_of()
    source = CheckpointFolder(checkpoint("bert"), task, 0)
    model, spec = source.pretrained(), source.input_spec(32)
    task.loss(model, task.collate(task.encode(RAGGED, spec), spec)).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_an_answer_out_of_range_is_reported_with_its_row(tiny_tokenizer):
    with pytest.raises(DataError, match=r"d\.jsonl, row 2 has the answer 2, but only 2 choices"):
        task_of().encode(Examples(RAGGED.columns, [0, 2], "d.jsonl"), InputSpec(tiny_tokenizer, "encoder", 32))


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        (1, ["a", "b"], True), (1, ["a"], False), (1, "ab", False),
        (2, 0, True), (2, -1, False), (2, True, False), (2, "A", False),
    ],
)  # fmt: skip
def test_columns_check_their_values(column, value, fits):
    assert task_of().columns("train")[column].kind.fits(value) is fits


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_decoder_scores_each_choice_at_its_last_token(kind, decoder_folder):
    """The saved classifier gives the same scores in plain transformers."""
    task = task_of()
    source = CheckpointFolder(decoder_folder(kind), task, 0)
    spec, model = source.input_spec(32), source.pretrained().eval()
    (feature,) = task.encode(RAGGED.take([0]), spec)
    with torch.no_grad():
        (scores,) = task.predict(model, task.collate([feature], spec))
    task.save(model, spec, decoder_folder(kind) / "tuned")
    plain = AutoModelForSequenceClassification.from_pretrained(str(decoder_folder(kind) / "tuned")).eval()
    with torch.no_grad():
        alone = [plain(torch.tensor([ids])).logits.item() for ids in feature["input_ids"]]
    assert scores.shape == (3,) and scores == pytest.approx(alone, rel=1e-4, abs=1e-5)
    assert len(set(alone)) == 3
