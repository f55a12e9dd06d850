"""Inputs of the checks, the same on every device; the tests take them from here."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.kernel.workspace import Workspace

EPS = 2.0**-24  # largest relative error of one float32 operation


def context(
    step: int = 0, rank: int = 0, path: tuple[str, ...] = (), *, name: str = "w", seed: int = 11
) -> Context:
    """Where one tensor's exchange between two workers stands."""
    return Context(seed, step, rank, 2, Workspace(), path=path, name=name)


def heavy_tailed(size: int = 5003, seed: int = 0, spread: float = 2.0) -> Tensor:
    """As gradients are: normal values whose scale varies by orders of magnitude. f32[size]."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=source)
    return x * torch.exp(spread * torch.randn(size, generator=source))


@functools.cache
def _tensors(worker: int, step: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(1000 * worker + step)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    heavy = normal(33, 130) * torch.exp(2 * normal(33, 130))
    heavy[3], heavy[:, 5] = 0.0, heavy[:, 5] * 1e-30
    return {
        "empty": torch.zeros(0),
        "one": normal(1),
        "scalar": normal(1).view(()),
        "zero": torch.zeros(2, 4),
        "constant": torch.full((3, 5), 0.1 + worker),
        "huge": normal(2, 65).tanh() * 1e38,  # no ties: DeMo would choose by the order of sums
        "denormal": normal(41) * 1e-41,
        "tiny": normal(101) * 1e-37,
        "mixed": heavy,  # 4290 values: a whole row of 4096, whole blocks of 2048, and a rest
    }


def tensors(worker: int, step: int) -> dict[str, Tensor]:
    """A worker's gradients, made anew: every kind of tensor that has broken a compressor."""
    return {name: tensor.clone() for name, tensor in _tensors(worker, step).items()}
