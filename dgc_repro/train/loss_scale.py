"""Dynamic loss scaling for fp16 autocast: small gradients are kept from becoming zero in half precision.

Paper: Micikevicius et al., "Mixed precision training", ICLR 2018 (arXiv:1710.03740), section 3.2. The numbers
are the defaults of torch's `torch.amp.GradScaler`. The trainer has a scale of its own, because all ranks
agree on a step that overflows before any residual changes, and gradients are unscaled before they are
compressed: residuals, policies and signals are in the units of the loss, whatever the scale is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_SCALE = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_STEPS = 2000  # steps without an overflow after which the scale grows


@dataclass
class LossScale:
    """The factor of a worker's loss. ``good_steps``: steps without an overflow since it has changed."""

    scale: float = FIRST_SCALE
    good_steps: int = 0

    def get_scale(self) -> float:
        """Return the scale, under the name that `torch.amp.GradScaler` gives it."""
        return self.scale

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> None:
        """Divide gradients by the scale, in place. The scale is a power of 2, so that this rounds nothing."""
        if present := list(gradients):
            torch._foreach_mul_(present, 1 / self.scale)

    def grow(self) -> None:
        """Count a step without an overflow."""
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale, self.good_steps = self.scale * GROWTH, 0

    def back_off(self) -> bool:
        """Lower the scale after a gradient that is not finite. Returns whether the scale may have been the
        cause: False where it is 1 or less, and stays."""
        if self.scale <= 1:
            return False
        self.scale, self.good_steps = self.scale * BACKOFF, 0
        return True
