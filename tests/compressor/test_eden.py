"""EDEN and DRIVE against the papers' algorithms in numpy, their errors, and the bias of their rotation."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from numeric import (
    EPS,
    Array,
    both_kernels,
    context,
    dense,
    encoded,
    finite_kinds,
    gaussian,
    hashed_bits,
    heavy_tailed,
)
from scipy.linalg import hadamard
from scipy.stats import norm
from torch import Tensor

from dgc_repro import DRIVE, EDEN
from dgc_repro.compressor.eden import LEVELS
from dgc_repro.kernel import rotate

SETTINGS = (
    EDEN(1, 1024), EDEN(2, 64), EDEN(3, 1024, "least_error"), EDEN(4, 32, rotations=2),
    EDEN(1, 256, "least_error", 3), EDEN(4, 1024, shared=True),
)  # fmt: skip
EXPECTED = {1: (0.5708, 0.3634), 2: (0.1331, 0.1175), 3: (0.0358, 0.0345), 4: (0.0096, 0.0095)}
"""||C(x) - x||^2 / ||x||^2 of unbiased and least_error, as in the docstring."""


@functools.cache
def lloyd_max(bits: int) -> Array:
    """The levels of least squared error of a standard normal variable: each is the mean of what lies next to
    it."""
    levels = np.linspace(-2, 2, 2**bits)
    for _ in range(5000):
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        levels = -np.diff(norm.pdf(edges)) / np.diff(norm.cdf(edges))
    return levels


def signs(key: int, start: int, d: int, turn: int) -> Array:
    """The random signs of the values of a block that begins at ``start``: bit 31 - p of hash w is of value
    32 w + p. The number of a rotation is mixed into that of the hash."""
    place = np.arange(start, start + d)
    bits = hashed_bits((place // 32) ^ (turn << 28), key)
    return 1.0 - 2.0 * ((bits >> (31 - place % 32).astype(np.uint32)) & 1)


@functools.cache
def transform(d: int) -> Array:
    """Hadamard's, orthonormal."""
    return hadamard(d) / math.sqrt(d)


def rotated(x: Array, key: int, start: int, times: int) -> Array:
    """The orthonormal H D of each turn, one after another."""
    for turn in range(times):
        x = transform(len(x)) @ (signs(key, start, len(x), turn) * x)
    return x


def rotated_back(x: Array, key: int, start: int, times: int) -> Array:
    for turn in reversed(range(times)):
        x = signs(key, start, len(x), turn) * (transform(len(x)) @ x)
    return x


def reference(x: Array, method: EDEN, key: int) -> tuple[Array, Array]:
    """Block by block: the decoded values, and how far the nearest entry of the block is from the edge between
    two levels, in units of the normal variable."""
    levels = lloyd_max(method.bits)
    edges = (levels[1:] + levels[:-1]) / 2
    sent, near = np.zeros(len(x)), np.zeros(len(x))
    for start in range(0, len(x), method.block):
        own = x[start : start + method.block]
        d = max(32, 2 ** math.ceil(math.log2(len(own))))
        filled = np.concatenate([own, np.zeros(d - len(own))])
        entries = rotated(filled, key, start, method.rotations)
        y = math.sqrt(d) * entries / np.linalg.norm(filled)
        q = levels[np.searchsorted(edges, y)]
        unbiased = filled @ filled / (entries @ q)
        scale = unbiased if method.scale == "unbiased" else entries @ q / (q @ q)
        here = np.s_[start : start + len(own)]
        sent[here] = scale * rotated_back(q, key, start, method.rotations)[: len(own)]
        near[here] = np.abs(y[:, None] - edges).min()
    return sent, near


@both_kernels
@pytest.mark.parametrize("method", SETTINGS, ids=str)
def test_values_equal_the_float64_reference_where_no_entry_is_on_an_edge(method: EDEN) -> None:
    """An entry is a sum of d values, rounded in log2 d stages for each rotation: 12 stages and 3 rotations of
    2^-24 of the norm, there and back. Blocks with an entry so close to an edge are left out."""
    x = heavy_tailed(9001, 3, spread=1.0)
    key = context().key(shared=method.shared)
    expected, near = reference(x.double().numpy(), method, key)
    found = dense(encoded(method, x)).double().numpy()
    within = 2 * 12 * method.rotations * EPS
    clear = near > 8 * within
    assert clear.mean() > 0.5
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found[clear], expected[clear], rtol=0, atol=8 * within * largest)


@pytest.mark.parametrize("bits", LEVELS)
def test_levels_are_those_of_lloyd_and_max(bits: int) -> None:
    upper = lloyd_max(bits)[2 ** (bits - 1) :]
    own = np.array(LEVELS[bits])
    np.testing.assert_allclose(own / own[0], upper / upper[0], rtol=1e-7)


@pytest.mark.parametrize("bits", EXPECTED)
def test_the_error_is_what_the_docstring_expects(bits: int) -> None:
    """Over 64 blocks of 4096 values the mean error scatters by a percent. Errors of one rotation:
    test_unbiased.py."""
    levels = lloyd_max(bits)
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    energy = float((np.diff(norm.cdf(edges)) * levels**2).sum())
    assert EXPECTED[bits] == pytest.approx((1 / energy - 1, 1 - energy), abs=5e-5)
    if bits == 1:
        assert energy == pytest.approx(2 / math.pi)
    x = heavy_tailed(64 * 4096, 5, spread=0.5)
    for scale, expected in zip(("unbiased", "least_error"), EXPECTED[bits], strict=True):
        sent = dense(encoded(EDEN(bits, scale=scale, rotations=2), x)).double()
        error = (sent - x.double()).square().sum() / x.double().square().sum()
        assert float(error) == pytest.approx(expected, rel=0.02)


# Bias.


def draws(method: EDEN, x: Tensor, count: int) -> Array:
    """What is sent of so many copies, whose blocks draw apart: f64[count, n]."""
    return dense(encoded(method, x.repeat(count))).double().numpy().reshape(count, -1)


@pytest.mark.parametrize(
    ("method", "spread"),
    [
        *((EDEN(bits, 256), 0.0) for bits in (1, 2, 4)),
        (EDEN(1, 256, shared=True), 0.0),
        *((EDEN(bits, 256, rotations=2), 1.0) for bits in (1, 2, 4)),
    ],
    ids=str,
)
def test_the_mean_of_many_draws_is_what_was_given(method: EDEN, spread: float) -> None:
    """1024 values and 1000 draws: the largest of as many normal z is below 5 but once in 1700 times, and the
    squared error of all means scatters by some 5 %. With ``spread`` 1 a value has two thirds of the norm."""
    x = heavy_tailed(1024, 4, spread)
    sent = draws(method, x, 1000)
    off, scatter = sent.mean(0) - x.double().numpy(), sent.std(0, ddof=1) / math.sqrt(1000)
    assert np.abs(off / scatter).max() < 5
    assert (off**2).sum() / (scatter**2).sum() == pytest.approx(1, abs=0.2)


def dominated(share: float) -> Tensor:
    """A block in which one value has this share of the norm."""
    x = gaussian(256, 4)
    x[7] = 0.0
    x *= math.sqrt(1 - share**2) / x.norm()
    x[7] = share
    return x


def test_one_rotation_lengthens_a_value_that_dominates_its_block_and_two_do_not() -> None:
    """1000 blocks are as many draws. At a share of 0.4 the docstring says share^2 / 3."""
    for share, once, beside in ((0.4, 1 + 0.4**2 / 3, 0.99), (0.9, 1.179, 0.24)):
        x = dominated(share)
        exact, others = x.double().numpy(), np.arange(256) != 7
        for rotations, largest, rest in ((1, once, beside), (2, 1.0, 1.0)):
            method = EDEN(1, 256, rotations=rotations)
            found = draws(method, x, 1000).mean(0)
            assert found[7] / share == pytest.approx(largest, abs=0.01)
            kept = found[others] @ exact[others] / (exact[others] @ exact[others])
            assert kept == pytest.approx(rest, abs=0.02)


@both_kernels
@pytest.mark.parametrize("bits", LEVELS)
def test_the_projection_on_entries_that_lie_on_an_edge_is_right_in_every_draw(bits: int) -> None:
    """<x, C(x)> = ||x||^2 with the unbiased scale, whatever the rotation."""
    two = torch.zeros(256)
    two[[3, 100]] = 0.7
    for x in (two, torch.full((256,), 0.3)):
        for step in range(5):
            sent = dense(encoded(EDEN(bits, 256), x, context(step))).double()
            assert float(x.double() @ sent) == pytest.approx(float(x.square().sum()), rel=1e-5)


@both_kernels
def test_least_error_never_loses_more_than_there_is() -> None:
    for x in finite_kinds(2000):
        for method in (EDEN(1, 256, "least_error"), EDEN(3, 64, "least_error", 2)):
            sent, exact = dense(encoded(method, x)).double(), x.double()
            loss = (sent - exact).square().view(-1).split(method.block)
            for lost, own in zip(loss, exact.split(method.block), strict=True):
                assert float(lost.sum()) <= float(own.square().sum()) * (1 + 1e-5)


def test_a_block_below_the_normal_range_is_sent_as_zeros() -> None:
    """Its neighbour, the smallest normal number, is not."""
    x = torch.zeros(128)
    x[:64], x[64] = 1e-39, 2.0**-126
    for method in (EDEN(1, 64), EDEN(4, 64, "least_error")):
        sent = dense(encoded(method, x))
        assert not bool(sent[:64].any())
        assert float(sent[64]) == pytest.approx(2.0**-126, rel=0.02)


def test_drive_is_eden_of_one_bit() -> None:
    x = heavy_tailed(5003)
    assert torch.equal(dense(encoded(DRIVE(block=256), x)), dense(encoded(EDEN(1, 256), x)))


# The transform.


@both_kernels
@pytest.mark.parametrize("d", [32, 64, 4096])
def test_the_transform_is_scipys(d: int) -> None:
    rows = torch.randint(-8, 9, (3, d), generator=torch.Generator().manual_seed(d)).float()
    expected = rows.double().numpy() @ hadamard(d).astype(np.float64)
    rotate.hadamard(rows)
    np.testing.assert_array_equal(rows.numpy(), expected)  # sums of whole numbers are exact
