"""Measures of a network's outputs on the training images. logits: f32[m,classes], labels: i64[m]."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PERCENTILE = 0.1


def margin(logits: Tensor, labels: Tensor) -> float:
    """gamma: the 10th percentile over images of f(x)[y] - max_{j != y} f(x)[j]. A percentile, because the
    smallest margin depends on one image."""
    own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    others = logits.scatter(1, labels.unsqueeze(1), -math.inf).amax(1)
    return float(torch.quantile(own - others, PERCENTILE))


def inverse_margin(gamma: float) -> float:
    """1 / gamma; infinite where more than a tenth of the images are misclassified."""
    return 1 / gamma if gamma > 0 else math.inf


def entropy(logits: Tensor) -> float:
    """Mean over images of -sum_j p_j log p_j, nats, with p the softmax of the outputs."""
    log_p = logits.log_softmax(1)
    return float(-(log_p.exp() * log_p).sum(1).mean())


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    """Mean over images of -log p_y, nats."""
    return float(F.cross_entropy(logits, labels))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of images whose largest output is the label's."""
    return float((logits.argmax(1) == labels).double().mean())
