"""SAM: sharpness-aware minimization (Foret, Kleiner, Mobahi, Neyshabur, 2020, arXiv:2010.01412, algorithm 1).

Each step computes two gradients on the same batch, the first at w and the second at a perturbed point:

    e = rho g(w) / ||g(w)||          over all tensors (equation 2 with p = 2)
    w = SGD step with g(w + e)

Several workers. ``compressed=perturbed`` (default): each worker perturbs by its own gradient and the
second gradient is compressed and exchanged. The paper does the same: its devices do not exchange the
perturbation ("m-sharpness", section 4.1). A step sends as many bytes as a step of SGD, and error feedback
conserves the gradient that moves the weights. ``compressed=first``: the first gradient is compressed and
exchanged, all workers perturb by its mean, and the second gradient is averaged uncompressed. The
compression error then only turns the perturbation, but a step sends the uncompressed gradient too. A second
gradient that is not finite comes after the first one has been exchanged, so such steps cannot be left out.

With ``perturbed`` both passes draw the same random numbers (dropout). Batch-norm statistics see the first
pass only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from dgc_repro.checked import Positive, checked
from dgc_repro.optimizer.sgd import SGD


@checked
class SAM(SGD):
    """``rho``: the length of the perturbation. ``compressed``: which of the two gradients, see above."""

    rho: Positive = 0.05
    compressed: Literal["perturbed", "first"] = "perturbed"


@contextmanager
def perturbed(module: nn.Module, rho: float) -> Iterator[None]:
    """Inside, the parameters are w + rho g / ||g||, with g in ``param.grad``. Afterwards parameters and
    buffers have the bits that they had before."""
    weights: list[Tensor] = [p for p in module.parameters() if p.grad is not None]
    before = [weight.detach().clone() for weight in weights]
    buffers = list(module.buffers())
    buffers_before = [buffer.clone() for buffer in buffers]
    with torch.no_grad():
        gradients = [p.grad for p in weights if p.grad is not None]
        torch._foreach_add_(weights, _scaled(gradients, rho))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
            for buffer, value in zip(buffers, buffers_before, strict=True):
                buffer.copy_(value)


def _scaled(gradients: Sequence[Tensor], rho: float) -> tuple[Tensor, ...]:
    """The gradients, as one vector of the 2-norm rho; zeros stay zeros."""
    length = nn.utils.get_total_norm(gradients)
    return torch._foreach_mul(list(gradients), torch.where(length > 0, rho / length, 0.0))
