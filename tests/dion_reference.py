"""Dion in float64 numpy, with decoupled momenta (arXiv:2504.05295), a matrix at a time."""

from __future__ import annotations

import numpy as np
from numeric import Array


def directions(gradients: list[list[Array]], q: Array, mu: float) -> tuple[list[Array], Array]:
    """P Q^T of each step of gradients[step][worker], and the last mean momentum. ``q``: f64[shorter side,
    r]."""
    wide = gradients[0][0].shape[0] < gradients[0][0].shape[1]
    momenta, found = [np.float64(0) for _ in gradients[0]], []
    for of_step in gradients:
        momenta = [m + (g.T if wide else g) for m, g in zip(momenta, of_step, strict=True)]
        p, _ = np.linalg.qr(np.mean([m @ q for m in momenta], axis=0))
        r = np.mean([m.T @ p for m in momenta], axis=0)
        momenta = [m - (1 - mu) * p @ r.T for m in momenta]
        q = r / np.linalg.norm(r, axis=0)
        found.append((p @ q.T).T if wide else p @ q.T)
    mean = np.mean(momenta, axis=0)
    return found, mean.T if wide else mean
