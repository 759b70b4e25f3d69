"""The loss scale of fp16, whose smallest numbers are too large for many gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

FIRST = 65536.0
"""The first scale, as in torch's GradScaler."""
_GROWTH, _BACKOFF, _INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """A power of two that multiplies the loss, and by which gradients are divided again before they are clipped.

    Algorithm:
        After a step whose gradients overflow, which changes no weights, the scale is halved, down to 1. After 2,000
        steps in a row without an overflow it is doubled. This is torch's GradScaler without its own reads of the device
        and its state outside of the checkpoint.

    Properties:
        All processes have the same scale, because they see the same gradients. On an accelerator the scale stays on the
        device, so that the host need not wait for it.
    """

    def __init__(self, device: torch.device, scale: float = FIRST, steps: int = 0) -> None:
        """Take the scale and the number of steps since it changed, as `state` returns them."""
        self.scale = torch.full((), scale, dtype=torch.float32, device=device)
        self._steps = torch.full((), steps, dtype=torch.int32, device=device)

    @property
    def state(self) -> tuple[float, int]:
        """Return the scale and the number of steps since it changed; on an accelerator this waits for the last step."""
        return float(self.scale), int(self._steps)

    @torch.no_grad()
    def unscale(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Divide the gradients by the scale: exact, because it is a power of two."""
        inverse = self.scale.reciprocal()
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(inverse)

    def update(self, overflows: torch.Tensor) -> None:
        """Adapt the scale after a step; `overflows` is 1.0 if its gradients had an Inf or NaN, a scalar."""
        torch._amp_update_scale_(self.scale, self._steps, overflows, _GROWTH, _BACKOFF, _INTERVAL)
        self.scale.clamp_(min=1.0)
