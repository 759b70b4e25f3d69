"""Padding, stacking and grouping of features, which all tasks use."""

from __future__ import annotations

import pytest
import torch

from headstart.core.data import InputSpec
from headstart.tasks.base import BaseTask, Padding, by_example, stack


def test_shorter_lists_are_padded_on_either_side():
    assert stack([[1, 2, 3], [4]], 0).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert stack([[1, 2, 3], [4]], -100, "left").tolist() == [[1, 2, 3], [-100, -100, 4]]
    assert stack([[1], []], 7, "left").tolist() == [[1], [7]]


def test_nested_lists_are_padded_at_every_level():
    """Choices have the shape (examples, choices, tokens); missing choices are all padding."""
    assert stack([[[1, 2], [3]], [[4]]], 0).tolist() == [[[1, 2], [3, 0]], [[4, 0], [0, 0]]]
    assert stack([[[1, 2], [3]], [[4]]], 0, "left").tolist() == [[[1, 2], [0, 3]], [[0, 4], [0, 0]]]


@pytest.mark.parametrize(
    ("values", "kind"), [([1, 2], torch.int64), ([1, 0.5], torch.float32), ([[], []], torch.int64)]
)
def test_integers_and_floats_keep_their_type(values, kind):
    assert stack(values, 0).dtype == kind


class Prompted(BaseTask):
    """A task with left-padded prompts."""

    paddings = {**BaseTask.paddings, "prompt_ids": Padding(side="left", mask="prompt_mask")}  # noqa: RUF012


def test_declared_keys_are_padded_and_others_stay_out_of_the_batch(tiny_tokenizer):
    features = [
        {"input_ids": [5, 6], "labels": [-100, 6], "prompt_ids": [5], "note": "x"},
        {"input_ids": [7], "labels": [7], "prompt_ids": [7, 8], "note": "y"},
    ]
    spec = InputSpec(tiny_tokenizer, "decoder", 32)
    batch = Prompted(None).collate(features, spec)
    pad = tiny_tokenizer.pad_token_id
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6], [7, pad]], "attention_mask": [[1, 1], [1, 0]], "labels": [[-100, 6], [7, -100]],
        "prompt_ids": [[pad, 5], [7, 8]], "prompt_mask": [[0, 1], [1, 1]],
    }  # fmt: skip
    assert Prompted(None).weight(batch) == 2 and Prompted(None).tokens(batch) == 4
    assert BaseTask(None).length({"input_ids": [[1], [2, 3]]}) == 2


def test_features_are_grouped_by_example():
    features = [{"example": 0}, {"example": 0}, {"example": 1}]
    assert [[output for output, _ in pieces] for pieces in by_example("abc", features)] == [["a", "b"], ["c"]]
    assert [[output for output, _ in pieces] for pieces in by_example("ab", [{}, {}])] == [["a"], ["b"]]
