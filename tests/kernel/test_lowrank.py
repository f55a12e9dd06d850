"""The thin products against float64, their fixed order of summation, and directions without NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numeric import EPS, batch, both_kernels, needs_c, normal, threads, without_c
from torch import Tensor

from dgc_repro.kernel import lowrank
from dgc_repro.kernel.lowrank import Matrices

CPU = torch.device("cpu")
# A lane's rest, a tile of 1024 columns, a run of 8192, one chunk of 64 rows, several, single rows.
SHAPES = [(1, 1), (1, 40), (40, 1), (3, 5), (9, 8200), (66, 1030), (200, 17), (1100, 33)]


def sizes(rows: int, cols: int, r: int) -> Matrices:
    """Of a batch of one."""
    return Matrices.of(((rows, cols),), r)


def times(m: Tensor, q: Tensor) -> Tensor:
    p = torch.full((q.shape[0], m.shape[0]), math.nan)
    lowrank.times(batch(m), sizes(*m.shape, len(q)), q.view(-1), p.view(-1))
    return p


def transposed_times(m: Tensor, p: Tensor) -> Tensor:
    q, of = torch.full((p.shape[0], m.shape[1]), math.nan), sizes(*m.shape, len(p))
    partial = torch.full((of.num_partial,), math.nan)
    lowrank.transposed_times(batch(m), of, p.view(-1), partial, q.view(-1))
    return q


def outer(x: Tensor, p: Tensor, q: Tensor, weight: float, *, accumulate: bool) -> None:
    of = sizes(*x.shape, len(p))
    lowrank.outer(batch(x), of, p.view(-1), q.view(-1), weight, accumulate=accumulate)


def directions(q: Tensor, key: int) -> Tensor:
    out = torch.full_like(q, math.nan)
    keys = np.array([key], dtype=np.int32)
    lowrank.directions(batch(q), sizes(1, q.shape[1], len(q)), lambda: keys, out.view(-1))
    return out


def orthonormal(p: Tensor) -> Tensor:
    out, work = torch.full_like(p, math.nan), torch.full(p.shape, math.nan, dtype=torch.float64)
    lowrank.orthonormal(p.view(-1), sizes(p.shape[1], 1, len(p)), work.view(-1), out.view(-1))
    return out


@both_kernels
@pytest.mark.parametrize("r", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_within_the_rounding_of_a_sum(shape: tuple[int, int], r: int) -> None:
    """A sum of n products in any order is off by at most n EPS times the sum of their magnitudes."""
    m, p, q = normal(1, *shape), normal(2, r, shape[0]), normal(3, r, shape[1])
    dm, dp, dq = m.double(), p.double(), q.double()
    off = (times(m, q) - dq @ dm.t()).abs()
    assert bool((off <= (shape[1] + 1) * EPS * (dq.abs() @ dm.abs().t())).all())
    off = (transposed_times(m, p) - dp @ dm).abs()
    assert bool((off <= (shape[0] + 1) * EPS * (dp.abs() @ dm.abs())).all())
    x = m.clone()
    outer(x, p, q, -0.5, accumulate=True)
    exact = dm - 0.5 * dp.t() @ dq
    scale = dm.abs() + 0.5 * dp.abs().t() @ dq.abs()
    assert bool(((x - exact).abs() <= (r + 2) * EPS * scale).all())
    outer(x, p, q, 2.0, accumulate=False)
    off = (x - 2 * dp.t() @ dq).abs()
    assert bool((off <= (r + 1) * EPS * 2 * (dp.abs().t() @ dq.abs())).all())


@needs_c
@pytest.mark.parametrize("shape", [(9, 8200), (66, 1030), (1100, 133)])
def test_in_c_neither_alignment_nor_threads_change_a_bit(shape: tuple[int, int]) -> None:
    m, p, q = normal(1, *shape), normal(2, 5, shape[0]), normal(3, 5, shape[1])
    expected = times(m, q), transposed_times(m, p)
    for count in (1, 2, 3):
        with threads(count):
            for shift in range(0, 16, 5):
                moved = torch.empty(m.numel() + 16)[shift : shift + m.numel()].view(shape).copy_(m)
                assert torch.equal(times(moved, q), expected[0])
                assert torch.equal(transposed_times(moved, p), expected[1])


@needs_c
@pytest.mark.parametrize("count", [1, 3])
def test_in_c_a_batch_gives_what_its_matrices_give_one_by_one(count: int) -> None:
    """Small matrices side by side, large ones one after another, their sums in one place."""
    shapes, r = ((66, 1030), (3, 5), (1100, 133), (200, 17), (70, 1100), (65, 8)), 3
    of, m = Matrices.of(shapes, r), [normal(i, *shape) for i, shape in enumerate(shapes)]
    p, q = normal(10, sum(of.p_sizes)), normal(11, sum(of.q_sizes))
    products, sums, units = torch.empty_like(p), torch.empty_like(q), torch.empty_like(p)
    scaled, left = torch.empty_like(q), [one.clone() for one in m]
    keys = np.array([5, 6, 7, 8, 9, 10], dtype=np.int32)
    with threads(count):
        lowrank.times(batch(*m), of, q, products)
        lowrank.transposed_times(batch(*m), of, p, torch.empty(of.num_partial), sums)
        lowrank.orthonormal(p, of, torch.empty(p.numel(), dtype=torch.float64), units)
        lowrank.outer(batch(*left), of, p, q, -1.0, accumulate=True)
        each_q = of.each_q(q)
        each_q[3][1] = 0.0
        lowrank.directions(batch(*each_q), of, lambda: keys, scaled)
    for i, (one, its_p) in enumerate(zip(m, of.each_p(p), strict=True)):
        assert torch.equal(of.each_p(units)[i], orthonormal(its_p))
        assert torch.equal(of.each_q(sums)[i], transposed_times(one, its_p))
        assert torch.equal(of.each_q(scaled)[i], directions(each_q[i], int(keys[i])))
        if i != 3:
            assert torch.equal(of.each_p(products)[i], times(one, each_q[i]))
            alone = one.clone()
            outer(alone, its_p, each_q[i], -1.0, accumulate=True)
            assert torch.equal(left[i], alone)


@needs_c
def test_in_c_what_is_subtracted_is_what_is_decoded_bit_for_bit() -> None:
    """So that an error feedback conserves: the terms are added up before they meet the buffer."""
    x, p, q = normal(1, 70, 90), normal(2, 6, 70), normal(3, 6, 90)
    decoded, left = torch.empty_like(x), x.clone()
    outer(decoded, p, q, 1.0, accumulate=False)
    outer(left, p, q, -1.0, accumulate=True)
    assert torch.equal(left, x - decoded)


# One pass of Gram and Schmidt in float32 leaves 1e-3 of rows that are nearly parallel; twice in float64 does
# not. A scale of 1e-44 leaves a few denormals: then whatever is independent must still be a unit.
ROWS = {f"{scale}": normal(5, 4, 50) * scale for scale in (1.0, 1e-30, 1e-44, 1e37)}
ROWS["nearly parallel"] = normal(9, 1, 200) + 1e-5 * normal(10, 3, 200)


@both_kernels
@pytest.mark.parametrize("kind", ROWS)
def test_rows_become_orthonormal_at_any_scale_and_angle(kind: str) -> None:
    """Rounded to float32 once: rows of norm 1 are off by less than 4 EPS."""
    p = ROWS[kind]
    unit = orthonormal(p).double()
    assert bool(((unit @ unit.t() - torch.eye(len(p))).abs() <= 4 * EPS).all())
    if kind != "1e-44":
        inside = p.double() - (p.double() @ unit.t()) @ unit  # the same space
        assert float(inside.norm()) <= 1e-6 * float(p.double().norm())


@both_kernels
def test_orthonormal_rows_are_those_of_gram_and_schmidt() -> None:
    """numpy's QR, with signs that make the diagonal of R positive: within float32's last bit or two."""
    p = normal(6, 3, 20)
    q, r = torch.linalg.qr(p.double().t())
    expected = (q * r.diagonal().sign()).t()
    assert bool(((orthonormal(p) - expected).abs() <= 2 * EPS).all())


@both_kernels
def test_rows_that_depend_on_others_become_zero_and_none_becomes_nan() -> None:
    p = normal(7, 5, 30)
    p[1], p[3] = 0.0, 3 * p[0] - p[2]
    unit = orthonormal(p)
    assert bool((unit[1] == 0).all() and (unit[3] == 0).all())
    kept = unit[[0, 2, 4]].double()
    assert bool(((kept @ kept.t() - torch.eye(3)).abs() <= 4 * EPS).all())
    more = orthonormal(normal(8, 6, 4))  # six rows in a space of four
    assert bool(more.isfinite().all())
    assert float(more.norm()) == pytest.approx(2, abs=1e-6)
    assert bool((orthonormal(torch.zeros(2, 3)) == 0).all())


@both_kernels
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_neither_hangs_nor_hides(bad: float) -> None:
    p = normal(11, 3, 20)
    p[1, 4] = bad
    assert not bool(orthonormal(p).isfinite().all())
    m = normal(12, 9, 40)
    m[8, 39] = bad
    assert bool((~times(m, directions(torch.zeros(2, 40), 3)).isfinite()).any(0)[8])


@both_kernels
@pytest.mark.parametrize("cols", [1, 7, 64, 65])
def test_directions_are_scaled_by_powers_of_two_to_a_sum_of_at_most_one(cols: int) -> None:
    q = normal(13, 4, cols) * torch.tensor([[1.0], [1e-38], [1e37], [2.0**-149]])
    q[:, 0] = torch.tensor([1.0, 1e-38, 3e38, 2.0**-149])
    q[3, 1:] = 0.0
    out = directions(q, 1)
    assert bool((out.double().abs().sum(1) <= 1).all())
    factor = out[:, :1].double() / q[:, :1].double()
    assert bool((torch.frexp(factor).mantissa == 0.5).all())
    assert bool((out == (q.double() * factor).float()).all())


def test_rows_without_a_direction_are_drawn_alike_by_both_kernels() -> None:
    q = normal(14, 5, 70)
    q[0], q[2, 3], q[4, 9] = 0.0, math.inf, math.nan
    first, whole = directions(q, 77), directions(q[[1, 1, 3, 3, 1]], 77)
    with without_c():
        assert torch.equal(first, directions(q, 77))
    assert torch.equal(first[[1, 3]], whole[[0, 2]])  # the others stay as they are
    normals = lowrank.normals(q.numel(), 77, CPU).view(q.shape)
    for row in (0, 2, 4):
        assert torch.equal(first[row] / first[row, 0], normals[row] / normals[row, 0])
    assert not torch.equal(first[0], directions(q, 78)[0])


def test_normals_are_normal() -> None:
    """10^5 of them: moments within 5 standard errors (1, sqrt 2, sqrt 6, sqrt 96 over sqrt n), the
    largest distance of the distribution function below Kolmogorov's 2 / sqrt n (p = 7e-4)."""
    n = 100_000
    x = lowrank.normals(n, 5, CPU).double()
    root = math.sqrt(n)
    assert abs(float(x.mean())) <= 5 / root
    assert abs(float(x.square().mean()) - 1) <= 5 * math.sqrt(2) / root
    assert abs(float(x.pow(3).mean())) <= 5 * math.sqrt(15) / root
    assert abs(float(x.pow(4).mean()) - 3) <= 5 * math.sqrt(96) / root
    ordered = torch.special.ndtr(x.sort().values)
    assert float((ordered - (torch.arange(n) + 0.5) / n).abs().max()) <= 2 / root
    assert abs(float((x[1:] * x[:-1]).mean())) <= 5 / root
    other = lowrank.normals(n, 6, CPU).double()
    assert abs(float((x * other).mean())) <= 5 / root
