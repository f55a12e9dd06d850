"""How large a perturbation of the weights may be before training accuracy falls by ``drop``, and the bounds.

    PAC-Bayes      sigma: the mean accuracy under u ~ N(0, sigma^2) falls by drop
    worst case     alpha: the accuracy under the worst u with |u_i| <= alpha falls by drop

Magnitude-aware: the scale of u_i is sqrt(s^2 |w_i|^2 + eps^2), eps = 1e-3, with s = sigma' for noise and
s = alpha' for the worst case (there |u_i| <= alpha' |w_i| + eps).

The bounds on the gap, of which a measure is the part inside the root (Jiang et al., 2019, arXiv:1912.02178,
appendix C.4 and C.5; Neyshabur, Bhojanapalli, McAllester, Srebro, 2017, arXiv:1706.08947; Keskar et al.,
2016, arXiv:1609.04836), with v = w - w^0 ("init") or v = w ("orig") and delta = sigma or alpha:

    PAC-Bayes           ||v||^2 / (4 sigma^2) + log(m / sigma) + 10
    worst case          ||v||^2 log(2 omega) / (4 alpha^2) + log(m / alpha) + 10
    PAC-Bayes, magn.    1/4 sum_i log((eps^2 + (sigma'^2 + 1) ||v||^2 / omega) / (eps^2 + sigma'^2 v0_i^2))
                        + log(m / sigma') + 10,   with v0 = w - w^0
    worst case, magn.   the same with alpha'^2 + 4 log(2 omega) in place of sigma'^2 + 1 and alpha' in the
                        place of sigma'
    flatness            1 / sigma^2, 1 / alpha^2, 1 / sigma'^2, 1 / alpha'^2
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.study.norms import accuracy, learned

EPSILON = 1e-3
SMALLEST, LARGEST = 2.0**-14, 2.0**2
"""Between them a scale is searched."""


def largest_scale(falls: Callable[[float], bool], bisections: int) -> float:
    """The scale at which ``falls`` becomes true, between 2^-14 and 2^2: bisection of the logarithm, exact to
    a factor of 2^(16 / 2^bisections)."""
    low, high = math.log2(SMALLEST), math.log2(LARGEST)
    for _ in range(bisections):
        middle = (low + high) / 2
        low, high = (low, middle) if falls(2**middle) else (middle, high)
    return float(2 ** ((low + high) / 2))


class Perturbation:
    """Perturbs the learned parameters of ``module`` in place and restores them. ``magnitude``: see above."""

    def __init__(
        self, module: nn.Module, inputs: Tensor, labels: Tensor, *, magnitude: bool
    ) -> None:
        self.module, self.inputs, self.labels = module, inputs, labels
        self.parameters: list[Tensor] = list(learned(module))
        self.before = [p.detach().clone() for p in self.parameters]
        self.magnitude = magnitude

    def restore(self) -> None:
        """Bring back the weights."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.before)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Of the weights as they are now."""
        return accuracy(self.module(self.inputs), self.labels)

    def noisy_accuracy(self, sigma: float, samples: int, seed: int) -> float:
        """Mean accuracy over ``samples`` of noise, the same noise for every sigma."""
        generator = torch.Generator().manual_seed(seed)
        found = 0.0
        for _ in range(samples):
            with torch.no_grad():
                for parameter, weight in zip(self.parameters, self.before, strict=True):
                    noise = torch.randn(weight.shape, generator=generator).to(weight.device)
                    parameter.copy_(weight + self.deviation(weight, sigma) * noise)
            found += self.accuracy() / samples
        self.restore()
        return found

    def deviation(self, weight: Tensor, sigma: float) -> Tensor:
        """Standard deviation of each entry's noise."""
        if not self.magnitude:
            return torch.full_like(weight, sigma)
        return (sigma**2 * weight.square() + EPSILON**2).sqrt()

    def radius(self, weight: Tensor, alpha: float) -> Tensor:
        """The largest change of each entry."""
        if not self.magnitude:
            return torch.full_like(weight, alpha)
        return alpha * weight.abs() + EPSILON

    def worst_accuracy(self, alpha: float, steps: int, enough: float) -> float:
        """The lowest accuracy that gradient ascent of the cross-entropy finds inside the box, from w. Each
        step moves by 2 / ``steps`` of the radius along the sign of the gradient (the steepest direction in a
        box) and is cut to the box. It ends early at ``enough``."""
        radii = [self.radius(weight, alpha) for weight in self.before]
        lowest = 1.0
        for step in range(steps + 1):
            logits = self.module(self.inputs)
            lowest = min(lowest, accuracy(logits, self.labels))
            if step == steps or lowest <= enough:
                break
            loss = F.cross_entropy(logits, self.labels)
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                for p, weight, radius, g in zip(
                    self.parameters, self.before, radii, gradients, strict=True
                ):
                    moved = p - weight + 2 / steps * radius * g.sign()
                    p.copy_(weight + torch.maximum(-radius, torch.minimum(radius, moved)))
        self.restore()
        return lowest


def bound(
    distance: float, from_init: Tensor, scale: float, images: int, *, worst: bool, magnitude: bool
) -> float:
    """See above. ``distance``: ||v||^2; ``from_init``: w - w^0, f32[omega]; ``scale``: sigma, or alpha if
    ``worst``."""
    count = from_init.numel()
    if magnitude:
        factor = scale**2 + (4 * math.log(2 * count) if worst else 1)
        above = EPSILON**2 + factor * distance / count
        below = EPSILON**2 + scale**2 * from_init.double().square()
        size = float((above / below).log().sum()) / 4
    else:
        size = distance * (math.log(2 * count) if worst else 1) / (4 * scale**2)
    return size + math.log(images / scale) + 10
