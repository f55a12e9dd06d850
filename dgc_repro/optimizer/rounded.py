"""SGD whose weights are rounded to k bits after each step.

Paper: a reading of "Distributed Model Training With Dynamic Gradient Compression", which reports weight
updates that slow down. The paper does not say what is quantized. One reading: workers exchange k-bit weights
and train on them. Here all workers round alike after the averaged gradient has moved the weights, so that
replicas stay equal; nothing else is sent, and the bytes of a run are those of its compressor.

    Q = 2^(b-1) - 1,  s = max|w| / Q,  w = round(w / s) s        one s a tensor

An update of less than half a step s is lost; nothing feeds it back. The largest weight is always on the
grid, so it moves, and the grid with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from torch import nn

from dgc_repro.checked import checked, within
from dgc_repro.optimizer.sgd import SGD


@checked
class RoundedSGD(SGD):
    """``weight_bits``: b, 2..16; halves are rounded to even."""

    weight_bits: Annotated[int, within(2, 16)] = 8

    def of(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.SGD:
        optimizer = super().of(parameters, lr)
        levels = 2 ** (self.weight_bits - 1) - 1

        def round_weights(*_: object) -> None:
            for group in optimizer.param_groups:
                _round(group["params"], levels)

        optimizer.register_step_post_hook(round_weights)
        return optimizer


@torch.no_grad()
def _round(weights: list[nn.Parameter], levels: int) -> None:
    for weight in weights:
        step = weight.abs().max() / levels
        # A tensor of zeros has no step; 1 leaves it as it is.
        step = torch.where(step > 0, step, 1.0)
        weight.div_(step).round_().mul_(step)
