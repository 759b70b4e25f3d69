"""Measure forgetting: how much of a pre-trained model's ability is left after an adaptation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Forgetting:
    """A measure of a model's ability before and after an adaptation."""

    what: str
    """Name of the measure, as in a table header."""
    before: float
    after: float
    lower_is_better: bool = False

    @property
    def change(self) -> float:
        """Return the value after the adaptation minus the value before."""
        return self.after - self.before

    @property
    def lost(self) -> float:
        """Return by how much the model is worse than before."""
        return self.change if self.lower_is_better else -self.change


def before_and_after(
    what: str,
    model: Any,
    value_of: Callable[[Any], float],
    of_checkpoint: Callable[[], float],
    lower_is_better: bool = False,
) -> Forgetting:
    """Measure a model before and after an adaptation.

    The value before is that of the checkpoint. A quantized model differs from it before training, so its value before
    is measured with the adapter disabled, and quantization counts on both sides. peft's prompt methods add only virtual
    tokens and leave the model itself unchanged.
    """
    after = value_of(model)
    adapter = getattr(model, "active_peft_config", None)
    if adapter is not None and adapter.is_prompt_learning:
        return Forgetting(what, after, after, lower_is_better)
    if adapter is not None and getattr(model, "is_quantized", False):
        with model.disable_adapter():
            return Forgetting(what, value_of(model), after, lower_is_better)
    return Forgetting(what, of_checkpoint(), after, lower_is_better)
