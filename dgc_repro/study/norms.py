"""Measures of a network's size and weights, and of its outputs (logits: f32[m,classes], labels: i64[m]).

The matrix of a convolution, for every norm here, is its kernel as [outputs, inputs x height x width] (Miyato,
Kataoka, Koyama, Yoshida, "Spectral normalization", 2018, arXiv:1802.05957, section 2.1). Its largest singular
value is not that of the convolution as a map of images (Sedghi, Gupta, Long, 2018, arXiv:1805.10408), which
depends on the image's size too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PERCENTILE = 0.1


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of images whose largest output is the label's."""
    return float((logits.argmax(1) == labels).double().mean())


def entropy(logits: Tensor) -> float:
    """Mean over images of -sum_j p_j log p_j, nats, with p the softmax of the outputs."""
    log_p = logits.log_softmax(1)
    return float(-(log_p.exp() * log_p).sum(1).mean())


def margin(logits: Tensor, labels: Tensor) -> float:
    """gamma: the 10th percentile over images of f(x)[y] - max_{j != y} f(x)[j]. A percentile, because the
    smallest margin depends on one image."""
    own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    others = logits.scatter(1, labels.unsqueeze(1), -math.inf).amax(1)
    return float(torch.quantile(own - others, PERCENTILE))


def learned(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients: all measures but the path norm are of these."""
    return [p for p in module.parameters() if p.requires_grad]


def matrices(module: nn.Module) -> list[Tensor]:
    """The weights of each layer, f32[outputs, inputs]; biases are no matrices."""
    return [p.detach().flatten(1) for p in learned(module) if p.ndim > 1]


def vector(module: nn.Module) -> Tensor:
    """All parameters, biases too, f32[omega]."""
    return torch.cat([p.detach().reshape(-1) for p in learned(module)])


def vc_dimension(module: nn.Module) -> float:
    """omega d log2(omega): the order of the bound for piecewise linear activations (Bartlett, Harvey, Liaw,
    Mehrabian, 2019, arXiv:1703.02930, theorem 6), without its constant."""
    count = sum(p.numel() for p in learned(module))
    return count * len(matrices(module)) * math.log2(count)


def square(weights: Sequence[Tensor]) -> float:
    """sum_i ||W_i||_F^2: of weights the parameter norm, of differences the Frobenius distance."""
    return sum(float(weight.double().square().sum()) for weight in weights)


def spectral(weights: Sequence[Tensor]) -> list[float]:
    """||W_i||_2, the largest singular value of each layer."""
    return [float(torch.linalg.matrix_norm(weight.double(), 2)) for weight in weights]


def log_product(norms: Sequence[float]) -> float:
    """log prod_i ||W_i||^2 = sum_i log ||W_i||^2; -infinity where a norm is 0."""
    return sum(2 * log(norm) for norm in norms)


def log(x: float) -> float:
    """The logarithm, -infinity of 0."""
    return -math.inf if x == 0 else math.log(x)


def over_margin(log_measure: float, gamma: float) -> float:
    """log(measure / gamma^2); infinite where the margin is not positive."""
    return log_measure - 2 * math.log(gamma) if gamma > 0 else math.inf


def sum_of_spectral(weights: Sequence[Tensor], gamma: float) -> float:
    """d (prod_i ||W_i||_2^2 / gamma^2)^(1/d): the smallest sum over layers of squared spectral norms that a
    rescaling of the layers can reach."""
    depth = len(weights)
    return depth * math.exp(over_margin(log_product(spectral(weights)), gamma) / depth)


def spectral_complexity(
    weights: Sequence[Tensor], distances: Sequence[Tensor], gamma: float
) -> float:
    """log(prod_i ||W_i||_2^2 sum_j ||D_j||_F^2 / ||W_j||_2^2 / gamma^2), with D = W - W^0 ("init") or D = W
    ("orig"); -infinity where every D_j or a ||W_j||_2 is 0. Bartlett, Foster, Telgarsky, 2017,
    arXiv:1706.08498, in the form of Jiang et al."""
    norms = spectral(weights)
    if 0 in norms:
        return over_margin(-math.inf, gamma)
    shares = [square([distance]) / norm**2 for distance, norm in zip(distances, norms, strict=True)]
    return over_margin(log_product(norms) + log(sum(shares)), gamma)


@torch.no_grad()
def path_norm(module: nn.Module, shape: Sequence[int]) -> float:
    """sum_j f_{w^2}(1)[j]: the outputs for an image of ones, with every parameter squared; that is the sum
    over paths of the product of squared weights. ``shape``: of an image. Neyshabur, Tomioka, Srebro, 2015,
    arXiv:1503.00036."""
    squared = deepcopy(module).double().eval()
    for parameter in squared.parameters():
        parameter.square_()
    ones = torch.ones(1, *shape, dtype=torch.float64, device=next(squared.parameters()).device)
    return float(squared(ones).sum())


def fisher_rao(module: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """(d + 1)^2 / m sum_x <w, grad_w loss(x)>^2. All products at once: with G(u) = grad_w sum_x u_x loss(x),
    linear in u, they are grad_u <w, G(u)>. Liang, Poggio, Rakhlin, Stokes, 2017, arXiv:1711.01530, as Jiang
    et al. write it."""
    parameters = learned(module)
    losses = F.cross_entropy(module(inputs), labels, reduction="none")
    u = torch.ones_like(losses, requires_grad=True)
    gradients = torch.autograd.grad(losses @ u, parameters, create_graph=True)
    pairs = zip(parameters, gradients, strict=True)
    product = torch.stack([(w.detach() * g).sum() for w, g in pairs]).sum()
    (along,) = torch.autograd.grad(product, u)  # f32[m]
    return float((len(matrices(module)) + 1) ** 2 * along.double().square().mean())
