"""Muon: the momentum of each hidden matrix, orthogonalized; Adam for all other tensors.

Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein, "Muon: an optimizer for hidden layers in neural
networks", 2024 (kellerjordan.github.io/posts/muon). The matrix part is torch's (`torch.optim.Muon`). For a
matrix W of m x n with gradient G in a step, learning rate eta, weight decay lambda:

    B = mu B + (1 - mu) G        M = mu B + (1 - mu) G with ``nesterov``, else B
    X = M / ||M||                X = a X + (b A + c A^2) X with A = X X^T, 5 times (Newton-Schulz, in bf16)
    W = W - eta lambda W - eta s X               (a, b, c) = (3.4445, -4.7750, 2.0315)

X is close to U V^T of the singular value decomposition M = U S V^T. ``scale`` chooses s: original
sqrt(max(1, m / n)); spectral_unclamped sqrt(m / n); match_rms_adamw 0.2 sqrt(max(m, n)) (Liu et al., "Muon is
scalable for LLM training", 2025, arXiv:2502.16982), with which the rates of AdamW fit.

Matrices are two-dimensional weights and convolution kernels, taken as output channels x all the rest.
Embeddings, the last linear layer (the head), vectors and the stacked factors of model.low_rank's LSTM go
through Adam (optimizer/adam.py) with ``adam_lr`` in the place of ``lr``. The schedule scales both rates.

With ``train.local_steps`` this is MuLoCo (Therien, Huang, Defazio, Rish, Belilovsky, "MuLoCo: Muon is a
practical inner optimizer for DiLoCo", 2025, arXiv:2505.23725): Muon within a round.

Differs: every worker orthogonalizes every matrix of the averaged gradient, so that nothing else is sent; the
author's distributed code gives each worker some of the matrices and gathers the results. A stacked weight is
one matrix: queries, keys and values of attention (model/gpt.py), the gates of an LSTM. The author found it
better to orthogonalize queries, keys and values apart. Compared by reading
with KellerJordan/Muon: its scale of a convolution kernel is of the kernel's last two dimensions, and so 1.
With facebookresearch/MuLoCo and bentherien/muloco-1: there ``nesterov`` is false, ``scale`` is
spectral_unclamped, B = mu B + G (of which X is the same), and a, b, c change with the iteration.
"""

from __future__ import annotations

import glob
import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, Positive, Rate, WeightDecay, checked, within
from dgc_repro.optimizer.lamb import Decay, LAMBOptimizer
from dgc_repro.optimizer.sgd import Optimizer

ORIGINAL, UNCLAMPED = "original", "spectral_unclamped"
BUFFER = "momentum_buffer"  # torch's name of B
KERNELS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@checked
class MatrixMethod(Optimizer):
    """What the optimizers of matrices share. ``lr``: of matrices. ``adam_lr``, ``beta1``, ``beta2``, ``eps``:
    of the other tensors. ``weight_decay``: of all tensors, decoupled."""

    lr: Rate = 0.02
    weight_decay: WeightDecay = 0.01
    reference_batch: Count | None = None
    adam_lr: Rate = 3e-4
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    eps: Positive = 1e-10

    def _groups(self, module: nn.Module) -> Iterable[Any]:
        return matrices_and_others(module, self.adam_lr / self.lr)

    def names_of_others(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of the tensors of two or more dimensions that go through Adam, as patterns for
        ``PerLayer(dense=...)``."""
        return names_of_others(module)


@checked
class Muon(MatrixMethod):
    """``momentum``, ``nesterov``, ``scale``: of matrices, see above."""

    momentum: Annotated[float, within(0, below=1)] = 0.95
    nesterov: bool = True
    scale: Literal["original", "spectral_unclamped", "match_rms_adamw"] = "original"

    def of(self, parameters: Iterable[Any], lr: float) -> MuonOptimizer:
        return MuonOptimizer(parameters, lr, self)


def matrices(module: nn.Module) -> set[nn.Parameter]:
    """The parameters that Muon moves: see the top of this file."""
    layers = list(module.modules())
    heads = [layer for layer in layers if isinstance(layer, nn.Linear)][-1:]
    apart = {
        p
        for layer in layers
        if isinstance(layer, nn.Embedding) or layer in heads
        for p in layer.parameters(recurse=False)
    }
    kernels = {layer.weight for layer in layers if isinstance(layer, KERNELS)}
    return {p for p in module.parameters() if p.numel() and (p.ndim == 2 or p in kernels)} - apart


def names_of_others(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors of two or more dimensions that are no `matrices`, as patterns of
    `PerLayer`."""
    known = matrices(module)
    return tuple(
        glob.escape(name) for name, p in module.named_parameters() if p.ndim > 1 and p not in known
    )


def matrices_and_others(module: nn.Module, adam_factor: float) -> list[dict[str, Any]]:
    """Return the groups of a `MatrixOptimizer`. ``adam_factor``: the others' rate over the matrices'."""
    known = matrices(module)
    hidden = [p for p in module.parameters() if p in known]
    others = [p for p in module.parameters() if p not in known]
    groups = [
        {"params": hidden, "is_matrix": True, "lr_factor": 1.0},
        {"params": others, "is_matrix": False, "lr_factor": adam_factor},
    ]
    return [group for group in groups if group["params"]]


class MatrixOptimizer(LAMBOptimizer):
    """The optimizer of a loop that moves groups with ``is_matrix`` by `move`, and the others by Adam."""

    def __init__(self, params: Iterable[Any], lr: float, of: MatrixMethod) -> None:
        """``params``: groups of `matrices_and_others`."""
        super().__init__(params, lr, (of.beta1, of.beta2), of.eps)
        for group in self.param_groups:
            group |= {"weight_decay": of.weight_decay, "adapts": False}
            group["lr"] = lr * group["lr_factor"]

    def update(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the weights of one group."""
        update = self.move if group["is_matrix"] else super().update
        update(group, weights, gradients)

    @abstractmethod
    def move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the matrices of a group."""


class MuonOptimizer(MatrixOptimizer):
    """Matrices go through `torch.optim.Muon`; all states are here."""

    def __init__(self, params: Iterable[Any], lr: float, of: Muon) -> None:
        super().__init__(params, lr, of)
        self._unclamped = of.scale == UNCLAMPED  # a name that torch 2.11 lacks
        self._matrix_settings: dict[str, Any] = {
            "momentum": of.momentum,
            "nesterov": of.nesterov,
            "adjust_lr_fn": ORIGINAL if self._unclamped else of.scale,
        }

    def move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        views = [nn.Parameter(as_matrix(weight)) for weight in weights]
        groups = [self._group(view, group["lr"], group["weight_decay"]) for view in views]
        # It takes matrices alone, so that it gets views, for this step. The states are kept by weight.
        muon = torch.optim.Muon(groups, **self._matrix_settings)
        for view, weight, gradient in zip(views, weights, gradients, strict=True):
            state = self.state[weight]
            before = state[BUFFER] if state else torch.zeros_like(weight)
            state[BUFFER] = _laid_out_like(weight, before)
            view.grad = as_matrix(_laid_out_like(weight, gradient))
            muon.state[view] = {BUFFER: as_matrix(state[BUFFER])}
        muon.step()

    def _group(self, view: nn.Parameter, lr: float, weight_decay: float) -> dict[str, Any]:
        """A matrix with its rate. Below sqrt(m / n) = 1, spectral_unclamped is a lower rate of `original`."""
        m, n = view.shape
        factor = min(1.0, math.sqrt(m / n)) if self._unclamped else 1.0
        return {"params": [view], "lr": lr * factor, "weight_decay": weight_decay / factor}


def _laid_out_like(weight: Tensor, tensor: Tensor) -> Tensor:
    """``tensor``, or a copy that lies in memory as ``weight`` does. A checkpoint may come from a device with
    another memory format."""
    same = tensor.stride() == weight.stride()
    return tensor if same else torch.empty_like(weight).copy_(tensor)


def as_matrix(tensor: Tensor) -> Tensor:
    """A view as a matrix, f32[m,n]: the first dimension, and all others in the order in which they lie in
    memory. (Newton-Schulz commutes with a permutation of columns.)"""
    others = sorted(range(1, tensor.dim()), key=lambda d: (-tensor.stride()[d], d))
    return tensor.detach().permute(0, *others).view(len(tensor), -1)
