"""What an adaptation cost: how much of what a body could do before it still can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Forgetting:
    """A number that tells what a body can do, before an adaptation and after it."""

    what: str
    """What is measured, as a table's head says it."""
    before: float
    after: float
    lower_is_better: bool = False

    @property
    def change(self) -> float:
        """Return what the adaptation added to the number."""
        return self.after - self.before

    @property
    def lost(self) -> float:
        """Return by how much the body is worse than it was."""
        return self.change if self.lower_is_better else -self.change


def before_and_after(
    what: str,
    model: Any,
    value_of: Callable[[Any], float],
    of_checkpoint: Callable[[], float],
    lower_is_better: bool = False,
) -> Forgetting:
    """Measure a body as it was and as an adaptation left it.

    The number before is the checkpoint's own. A quantised body was changed before anything was learnt, so its adapter
    is switched off for the number before, and quantisation counts on both sides; peft's prompts, which give the body
    virtual tokens to read, leave it as it was.
    """
    after = value_of(model)
    adapter = getattr(model, "active_peft_config", None)
    if adapter is not None and adapter.is_prompt_learning:
        return Forgetting(what, after, after, lower_is_better)
    if adapter is not None and getattr(model, "is_quantized", False):
        with model.disable_adapter():
            return Forgetting(what, value_of(model), after, lower_is_better)
    return Forgetting(what, of_checkpoint(), after, lower_is_better)
