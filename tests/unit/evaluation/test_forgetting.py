"""Before and after an adaptation: which network is measured as which."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from headstart.evaluation.forgetting import Forgetting, before_and_after


def test_a_plain_model_is_compared_with_its_checkpoint():
    found = before_and_after("loss", "model", lambda model: {"model": 2.5}[model], lambda: 2.0)
    assert found == Forgetting("loss", 2.0, 2.5) and found.change == 0.5


class Adapted:
    """As peft's models are: with an adapter that can be switched off, on a body that may be quantised."""

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
    ("prompts", "quantised", "before"), [(False, False, 1.0), (False, True, 2.9), (True, False, 3.0)]
)
def test_what_an_adapter_is_compared_with(prompts, quantised, before):
    found = before_and_after("loss", Adapted(prompts, quantised), lambda model: model.loss, lambda: 1.0)
    assert (found.before, found.after) == (before, 3.0)
