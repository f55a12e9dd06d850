"""Muon and AdamW in float64 numpy, tensor by tensor (kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from dgc_repro.optimizer.muon import Muon

Array = NDArray[np.float64]
SCALES = {
    "original": lambda m, n: max(1, m / n) ** 0.5,
    "spectral_unclamped": lambda m, n: (m / n) ** 0.5,
    "match_rms_adamw": lambda m, n: 0.2 * max(m, n) ** 0.5,
}


def orthogonalized(m: Array) -> Array:
    """Five iterations of Newton-Schulz, of the singular values: X = U p(p(...(S / ||M||))) V^T."""
    u, s, v = np.linalg.svd(m, full_matrices=False)
    s = s / np.linalg.norm(m)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return np.asarray((u * s) @ v)


class Reference:
    """One tensor of Muon, or of AdamW."""

    def __init__(self, of: Muon, weight: Array, is_matrix: bool) -> None:
        self.of, self.weight, self.is_matrix = of, weight.copy(), is_matrix
        self.mean, self.square, self.steps = np.zeros_like(weight), np.zeros_like(weight), 0

    def step(self, gradient: Array, lr: float) -> None:
        of, shape = self.of, self.weight.shape
        self.steps += 1
        if self.is_matrix:
            self.mean = of.momentum * self.mean + (1 - of.momentum) * gradient
            m = self.mean
            if of.nesterov:
                m = of.momentum * m + (1 - of.momentum) * gradient
            flat = m.reshape(shape[0], -1)
            update = SCALES[of.scale](*flat.shape) * orthogonalized(flat).reshape(shape)
        else:
            self.mean = of.beta1 * self.mean + (1 - of.beta1) * gradient
            self.square = of.beta2 * self.square + (1 - of.beta2) * gradient**2
            root = np.sqrt(self.square / (1 - of.beta2**self.steps)) + of.eps
            update = self.mean / (1 - of.beta1**self.steps) / root
            lr *= of.adam_lr / of.lr
        self.weight = self.weight - lr * of.weight_decay * self.weight - lr * update


@contextmanager
def in_float32() -> Iterator[None]:
    """torch's Newton-Schulz in float32 in the place of bf16, whose digits would hide a mistake. (Older
    versions call `Tensor.bfloat16`, and overwrite what it returns.)"""
    with (
        mock.patch.object(torch, "bfloat16", torch.float32),
        mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone),
    ):
        yield
