"""Forgetting: which model is measured before and which after an adaptation."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from headstart.evaluation.forgetting import Forgetting, before_and_after


def test_a_plain_model_is_compared_with_its_checkpoint():
    result = before_and_after("loss", "model", lambda model: {"model": 2.5}[model], lambda: 2.0)
    assert result == Forgetting("loss", 2.0, 2.5) and result.change == 0.5


class Adapted:
    """A stand-in for peft's models: an adapter that can be disabled, on a model that may be quantized."""

    def __init__(self, is_prompt_learning: bool, is_quantized: bool) -> None:
        self.active_peft_config = SimpleNamespace(is_prompt_learning=is_prompt_learning)
        self.is_quantized = is_quantized
        self.loss = 3.0

    @contextmanager
    def disable_adapter(self):
        assert not self.active_peft_config.is_prompt_learning, "peft cannot, for a classifier"
        self.loss = 2.9
        yield
        self.loss = 3.0


@pytest.mark.parametrize(
    ("prompts", "quantized", "before"), [(False, False, 1.0), (False, True, 2.9), (True, False, 3.0)]
)
def test_what_an_adapter_is_compared_with(prompts, quantized, before):
    result = before_and_after("loss", Adapted(prompts, quantized), lambda model: model.loss, lambda: 1.0)
    assert (result.before, result.after) == (before, 3.0)
