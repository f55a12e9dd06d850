"""Sign methods against their definitions: 1-bit SGD, signSGD by majority vote, scaled signs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from laws import Setting, play, same_bits, simulation, stepped
from numeric import Array, both_kernels, dense, encoded, heavy_tailed
from torch import Tensor

from dgc_repro import EFSignSGD, MomentumCorrection, OneBit, SignSGD
from dgc_repro.compressor.nesting import check_nesting


def decoded(method: OneBit | EFSignSGD | SignSGD, x: Tensor) -> Tensor:
    return dense(encoded(method, x)).view(x.shape)


# 1-bit SGD.


def onebit(x: Array) -> Array:
    """Column j of the matrix: bit = (x >= 0), and the mean of the column's values with that bit."""
    matrix = x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(-1, 1)
    out = np.zeros_like(matrix)
    for j in range(matrix.shape[1]):
        column = matrix[:, j]
        for bit in (True, False):
            alike = (column >= 0) == bit
            if alike.any():
                out[alike, j] = column[alike].mean()
    return out.reshape(x.shape)


def scaled_signs(p: Array) -> Array:
    """C(p) = ||p||_1 / n sign(p)"""
    return np.abs(p).sum() / p.size * np.sign(p)


SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (5003,), (1, 7), (7, 1), (64, 27), (300, 200)),
    *((16, 1000), (9, 5, 3, 3), (700, 2)),
)


@both_kernels
def test_values_equal_the_float64_references() -> None:
    """Means are summed in float64 and rounded once: 2^-24, and the float64 sums' 2^-40 at most."""
    for shape in SHAPES:
        x = heavy_tailed(math.prod(shape), len(shape)).view(shape)
        for method, reference in ((OneBit(), onebit), (EFSignSGD(), scaled_signs)):
            np.testing.assert_allclose(
                decoded(method, x).double().numpy(),
                reference(x.double().numpy()),
                rtol=2.0**-24 + 2.0**-40,
                err_msg=f"{method} of {shape}",
            )


@both_kernels
def test_zeros_columns_of_one_sign_and_huge_values_come_back_as_themselves() -> None:
    x = torch.tensor([[0.0, 2.0, -3.0, -0.0], [0.0, 2.0, -3.0, -0.0]])
    assert torch.equal(decoded(OneBit(), x), x)
    # A 0 counts as non-negative: it takes part in that mean, and in no other.
    assert decoded(OneBit(), torch.tensor([0.0, 4.0, -1.0])).tolist() == [2.0, 2.0, -1.0]
    assert not decoded(EFSignSGD(), torch.zeros(70)).any()
    for huge in (torch.full((500, 3), 3e38), torch.full((5000,), -3e38)):
        assert torch.equal(decoded(OneBit(), huge), huge)
        assert torch.equal(decoded(EFSignSGD(), huge), huge)


@both_kernels
def test_a_value_that_is_not_finite_stays_in_its_column() -> None:
    for broken in (torch.nan, torch.inf, -torch.inf):
        x = heavy_tailed(640).view(64, 10)
        x[5, 3] = broken
        found = decoded(OneBit(), x)
        assert not bool(found[5, 3].isfinite()), broken
        assert bool(found[:, [0, 1, 2, 4, 5, 6, 7, 8, 9]].isfinite().all()), broken


# Scaled signs.


@both_kernels
def test_what_scaled_signs_leave_is_what_the_papers_density_says() -> None:
    """||C(p) - p||^2 = (1 - ||p||_1^2 / (n ||p||^2)) ||p||^2, which the scale's rounding changes by
    2^-22 of it at most."""
    x = heavy_tailed()
    p, sent = x.double(), decoded(EFSignSGD(), x).double()
    density = float(p.abs().sum() ** 2 / (len(p) * p.square().sum()))
    left = float((sent - p).square().sum() / p.square().sum())
    assert 0 < left < 1
    assert left == pytest.approx(1 - density, rel=2.0**-22)


# The majority vote.


@both_kernels
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8, 9, 12, 31, 32, 33, 64])
def test_the_answer_is_the_sign_of_the_sum_of_signs(workers: int) -> None:
    """Algorithm 1 of the majority vote: sign(sum over workers of sign(g)); a tie is 0. Also where value i has
    i votes against."""
    against = torch.arange(workers + 1)
    every = [torch.where(worker < against, -1.0, 1.0) for worker in range(workers)]
    for gradients in (every, [heavy_tailed(4500, worker) for worker in range(workers)]):
        answer = stepped(SignSGD(), gradients)
        assert same_bits(answer, torch.stack(gradients).sign().sum(0).sign())
        assert bool((answer == 0).any()) == (workers % 2 == 0)


@both_kernels
def test_what_is_zero_everywhere_cancels() -> None:
    """At once with an even number of workers, over two steps with an odd one."""
    zeros = torch.zeros(50)
    zeros[::2] *= -1
    for workers in (2, 4):
        assert not stepped(SignSGD(), [zeros] * workers).any()
    for workers in (1, 3):
        first, second = (stepped(SignSGD(), [zeros] * workers, steps) for steps in (1, 2))
        assert torch.equal(first.abs(), torch.ones(50))
        assert torch.equal(first, -second)


def test_signum_is_momentum_correction_around_it() -> None:
    """Workers send the sign of m u + g; Signum's factor 1 - m changes no sign."""
    setting = Setting("signum", MomentumCorrection(SignSGD(), 0.9))
    check_nesting(setting.compressor)
    exchange = simulation(setting, 3, {"x": torch.zeros(501)})
    momenta = torch.zeros(3, 501)
    for step in range(4):
        gradients = torch.stack([heavy_tailed(501, 3 * step + worker) for worker in range(3)])
        momenta = 0.9 * momenta + 0.1 * gradients
        mean = play(exchange, setting, [{"x": g.clone()} for g in gradients])["x"]
        assert torch.equal(mean, momenta.sign().sum(0).sign())
