"""How well a measure orders networks by their generalization gap (Jiang, Neyshabur, Mobahi, Krishnan, Bengio,
"Fantastic generalization measures and where to find them", 2019, arXiv:1912.02178, section 2).

mu = measures f64[n], g = gaps f64[n], theta = settings i64[n,h] (each hyper-parameter's value by its number).
Pairs are ordered, of two different networks. A tie counts as neither order.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

Signs = NDArray[np.int64]
Settings = NDArray[np.int64]


def signs(values: ArrayLike) -> Signs:
    """V: sign(v_i - v_j) of each pair, i64[n,n]; two infinite values are a tie."""
    v = np.asarray(values, dtype=np.float64)
    return (v[:, None] > v[None]).astype(np.int64) - (v[:, None] < v[None])


def tau(mu: ArrayLike, g: ArrayLike) -> float:
    """Kendall's tau: the mean over pairs of sign(mu_i - mu_j) sign(g_i - g_j)."""
    n = len(np.asarray(g))
    return float((signs(mu) * signs(g)).sum() / (n * (n - 1))) if n > 1 else float("nan")


def psi(mu: ArrayLike, g: ArrayLike, theta: Settings, axis: int) -> float:
    """Psi_i: tau among networks that differ in hyper-parameter i alone, averaged over these groups."""
    others = np.delete(theta, axis, 1)
    _, group, sizes = np.unique(others, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    several = sizes > 1
    if not several.any():
        return float("nan")
    pairs = np.where(several, sizes * (sizes - 1), 1)[group]
    alike = group[:, None] == group[None]
    return float((signs(mu) * signs(g) * alike / pairs).sum() / several.sum())


def conditional_information(mu: ArrayLike, g: ArrayLike, theta: Settings, most: int = 2) -> float:
    """K: the smallest I(V_mu, V_g | U_S) / H(V_g | U_S) over all sets S of at most ``most`` hyper-parameters,
    with U_S their values in both networks of a pair. Pairs of equal gap are left out."""
    first, second = np.nonzero(v_g := signs(g))
    pairs = signs(mu)[first, second] + 1, (v_g[first, second] + 1) // 2
    found = []
    for size in range(most + 1):
        for chosen in itertools.combinations(range(theta.shape[1]), size):
            _, code = np.unique(
                np.c_[theta[:, chosen], 0 * theta[:, :1]], axis=0, return_inverse=True
            )
            code = code.reshape(-1)
            found.append(_normalized(*pairs, code[first] * (code.max() + 1) + code[second]))
    return min(found)


def _normalized(v_mu: Signs, v_g: Signs, u: Settings) -> float:
    """I(V_mu, V_g | U) / H(V_g | U) of counted pairs; v_mu in 0..2, v_g in 0..1."""
    counts = np.bincount((u * 3 + v_mu) * 2 + v_g, minlength=6 * (u.max() + 1)).reshape(-1, 3, 2)
    p = counts / counts.sum()  # f64[u,v_mu,v_g]
    given = p.sum((1, 2), keepdims=True)
    information = _sum(p, p * given, p.sum(2, keepdims=True) * p.sum(1, keepdims=True))
    of_gap = p.sum(1, keepdims=True)
    entropy = -_sum(of_gap, of_gap, given)
    return information / entropy if entropy > 0 else 0.0


def _sum(
    weights: NDArray[np.float64], above: NDArray[np.float64], below: NDArray[np.float64]
) -> float:
    """sum w log(a / b), 0 where w is 0."""
    w, a, b = np.broadcast_arrays(weights, above, below)
    some = w > 0
    return float((w[some] * np.log(a[some] / b[some])).sum())
