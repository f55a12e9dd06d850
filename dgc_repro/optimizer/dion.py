"""The steps of Dion: directions for hidden matrices, Adam for all other tensors.

Ahn et al., "Dion: Distributed orthonormalized updates", 2025 (arXiv:2504.05295). The compressor
(compressor/dion.py) keeps the momentum and orthonormalizes it. Its answer for a matrix W of m x n is the
direction D = P Q^T, the same on all workers. For learning rate eta, weight decay lambda:

    W = W - eta lambda W - eta sqrt(m / n) D

Matrices are those that Muon moves (optimizer/muon.py). The other tensors go through Adam with ``adam_lr`` in
the place of ``lr``. The schedule scales both rates.

Differs: the authors' code has one rate for all tensors, and Lion as its default for the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.optimizer.muon import MatrixMethod, MatrixOptimizer


@checked
class Dion(MatrixMethod):
    """Its settings are those of every `MatrixMethod`."""

    def of(self, parameters: Iterable[Any], lr: float) -> DionOptimizer:
        return DionOptimizer(parameters, lr, self)


DionSteps = Dion
"""The public name: `dgc_repro.Dion` is the compressor."""


class DionOptimizer(MatrixOptimizer):
    """The optimizer of a loop. The gradient of a matrix is the answer of the compressor."""

    def move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for weight, direction in zip(weights, gradients, strict=True):
            scale = math.sqrt(len(weight) ** 2 / weight.numel())  # sqrt(m / n)
            weight.add_(direction, alpha=-group["lr"] * scale)
