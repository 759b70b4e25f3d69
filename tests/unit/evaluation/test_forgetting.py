"""Before and after an adaptation: which network is measured as which."""

from __future__ import annotations

from contextlib import contextmanager

from headstart.evaluation.forgetting import Forgetting, before_and_after


def test_a_plain_model_is_compared_with_its_checkpoint():
    found = before_and_after("loss", "model", lambda model: {"model": 2.5}[model], lambda: 2.0)
    assert found == Forgetting("loss", 2.0, 2.5) and found.change == 0.5


def test_an_adapter_is_switched_off_for_the_loss_before():
    class Adapted:
        loss = 3.0

        @contextmanager
        def disable_adapter(self):
            self.loss = 2.9
            yield
            self.loss = 3.0

    found = before_and_after("loss", Adapted(), lambda model: model.loss, lambda: 1.0)
    assert (found.before, found.after) == (2.9, 3.0)
