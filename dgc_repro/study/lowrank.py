"""How much of real gradients low-rank factors keep: spectra, and power iteration from a warm or cold start.

    P = M Q;  P = orthogonalize(P);  Q = M^T P;  M ~ P Q^T;  ||P Q^T||^2 = ||Q||^2

M is the mean over workers: the mean of all M_i Q is M Q, and the mean of all M_i^T P is M^T P. A warm start
takes the last step's Q, a cold start draws Q from a standard normal at each step. The best approximation of
rank r keeps the r largest singular values (Eckart, Young, 1936). All are computed in float64.

Paper: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019 (arXiv:1905.13727), algorithm 1.
Matrices as in compressor/powersgd.py: shape[0] rows, the rest as columns; a tensor that is no larger than its
factors of the highest rank is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dgc_repro.checked import Count, checked
from dgc_repro.study.given import HISTORY, Counts, History, Row

Matrix = NDArray[np.float64]
SPECTRUM, ENERGY = "spectrum", "energy"
BEST, WARM, COLD = "best", "warm", "cold"


@checked
class LowRank:
    """``ranks``: r; ``steps``: of training, each of which is analysed; ``spectra``: the steps whose singular
    values are recorded; ``values``: how many of them, the largest first."""

    ranks: Counts
    steps: Count
    spectra: Counts
    values: Count
    takes = HISTORY

    def __post_init__(self) -> None:
        if max(self.spectra) > self.steps:
            raise ValueError(f"spectra: steps up to {self.steps}, got {max(self.spectra)}")

    def run(self, seed: int, history: History) -> list[Row]:
        generator = np.random.default_rng(seed)
        last: dict[tuple[str, int], Matrix] = {}
        rows: list[Row] = []
        for step, tensors in history:
            matrices = matrices_of(tensors, max(self.ranks))
            squares = {name: squared_singular_values(m) for name, m in matrices.items()}
            total = sum(float(s.sum()) for s in squares.values())
            for rank in self.ranks:
                kept = {BEST: sum(float(s[:rank].sum()) for s in squares.values())}
                kept |= dict.fromkeys((WARM, COLD), 0.0)
                for name, m in matrices.items():
                    cold = generator.standard_normal((m.shape[1], rank))
                    for kind, q in ((COLD, cold), (WARM, last.get((name, rank), cold))):
                        _, q = power_step(m, q)
                        kept[kind] += float((q**2).sum())
                    last[name, rank] = q
                rows += [_row(ENERGY, step, "", rank, k, e / total) for k, e in kept.items()]
            for name, s in squares.items() if step in self.spectra else ():
                shares = (s / s.sum())[: self.values]
                rows += [_row(SPECTRUM, step, name, i, "", v) for i, v in enumerate(shares, 1)]
        return rows


def _row(what: str, step: int, tensor: str, rank: int, kind: str, value: float) -> Row:
    """``rank``: of the approximation, or the place of a singular value, from 1; ``value``: share of the
    squared norm, of all matrices or of the tensor's."""
    return {
        "what": what, "step": step, "tensor": tensor, "rank": rank, "kind": kind, "value": float(value)
    }  # fmt: skip


def matrices_of(tensors: Mapping[str, NDArray[np.float32]], rank: int) -> dict[str, Matrix]:
    """The tensors that rank ``rank`` makes smaller, f64[rows, cols]."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            m = tensor.reshape(tensor.shape[0], -1).astype(np.float64)
            if rank * sum(m.shape) < m.size:
                found[name] = m
    return found


def squared_singular_values(m: Matrix) -> NDArray[np.float64]:
    """Descending: the eigenvalues of the smaller Gram matrix."""
    gram = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
    return np.linalg.eigvalsh(gram)[::-1].clip(min=0)


def power_step(m: Matrix, q: Matrix) -> tuple[Matrix, Matrix]:
    """P (orthonormal columns) and the next Q. m: rows x cols; q: cols x r."""
    p, _ = np.linalg.qr(m @ q)
    return p, m.T @ p
