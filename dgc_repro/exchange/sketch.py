"""What workers' gradients have in common, estimated from a sketch: no gradient is averaged for it.

Paper: Alon, Matias and Szegedy, "The space complexity of approximating the frequency moments", STOC 1996
(random signs); Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", ICALP 2002
(buckets). Each worker adds its gradient, with random signs that all workers share, into m sums. Then
E<S g_i, S g_j> = <g_i, g_j>, and for workers whose gradients g_i = mu + noise_i are independent

    E[ (||sum of S g_i||^2 - sum of ||S g_i||^2) / (N (N - 1)) ] = ||mu||^2

No worker is paired with itself, so no noise is left in the estimate, and it may be below 0.

Variance of one step's estimate: 2 s^4 (1 / m + R) / (N (N - 1)) where mu is 0, and 2 ||mu||^4 / m where
there is no noise; s^2 = E||noise||^2, R = tr(cov^2) / s^4, which is 1 / values for even noise. The signs are
new in every step, so averages over steps settle.
Sent: m + 1 float64 a worker and step, with the signals. Buckets are places modulo m. It is a prime, so that
the rows of a weight do not line up with the buckets.

Letters: N = workers, m = buckets, S = the sketch, mu = the gradient without noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from dgc_repro.kernel import counter

BUCKETS = 257


def sketch(gradients: Iterable[Tensor | None], seed: int, step: int) -> Tensor:
    """S g of one worker and its square: f64[m + 1]. ``gradients``: of all parameters in one order on all
    workers; None counts as zeros."""
    sums: Tensor | None = None
    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        flat = gradient.detach().reshape(-1)
        places = torch.arange(flat.numel(), dtype=torch.int32, device=flat.device)
        key = counter.key(seed, step, index, "sketch")
        hashed = counter.bits(places, counter.on_device(key, flat.device))
        signed = torch.where(hashed < 0, -flat, flat)
        rows = F.pad(signed, (0, -flat.numel() % BUCKETS)).view(-1, BUCKETS)
        summed = rows.sum(0, dtype=torch.float64)
        sums = summed if sums is None else sums.add_(summed)
    if sums is None:
        return torch.zeros(BUCKETS + 1, dtype=torch.float64)
    return torch.cat([sums, sums.square().sum().view(1)])


def common_square(total: Tensor, workers: int) -> float:
    """The estimate of ||mu||^2 from the sum of all workers' `sketch`; NaN of one worker alone."""
    if workers < 2:
        return math.nan
    crossed = total[:-1].square().sum() - total[-1]
    return float(crossed) / (workers * (workers - 1))
