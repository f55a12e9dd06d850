"""PowerSGD against the paper in numpy, its warm start, and what has broken others."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from laws import play, simulation
from numeric import Array, both_kernels, context, dense, doubles, driven, first_q, normal
from torch import Tensor

from dgc_repro import Dense, ErrorFeedback, Ladder, PowerSGD, UserError
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import LowRank
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import Setting


def world(compressor: Compressor, like: dict[str, Tensor], workers: int = 2) -> Exchange:
    return simulation(Setting("", compressor), workers, like)


def step(exchange: Exchange, *gradients: dict[str, Tensor], rung: int = 0) -> dict[str, Tensor]:
    return play(exchange, Setting("", Dense(), Plan(rung)), list(gradients))


def alike(exchange: Exchange, m: Tensor) -> Tensor:
    """The mean of a step in which both workers have the same gradient "w"."""
    return step(exchange, {"w": m.clone()}, {"w": m.clone()})["w"]


def relative(off: Tensor, of: Tensor) -> float:
    return float(off.double().norm() / of.double().norm())


def gram_schmidt(p: Array) -> Array:
    """Columns made orthonormal, in their order."""
    p = p.copy()
    for k in range(p.shape[1]):
        for j in range(k):
            p[:, k] -= (p[:, j] @ p[:, k]) * p[:, j]
        p[:, k] /= np.linalg.norm(p[:, k])
    return p


def reference(gradients: list[list[Array]], q: Array) -> tuple[list[Array], list[Array], Array]:
    """Algorithms 1 and 2 of the paper in float64: the mean of every step, the last residuals and Q.

    gradients[step][worker]: rows x cols; q: cols x r.
    """
    errors = [np.zeros_like(g) for g in gradients[0]]
    means = []
    for of_step in gradients:
        m = [g + e for g, e in zip(of_step, errors, strict=True)]  # Delta_w = g_w + e_w
        p = np.mean([one @ q for one in m], axis=0)  # P = all_reduce_mean(M Q)
        p = gram_schmidt(p)  # P = orthogonalize(P)
        own_q = [one.T @ p for one in m]  # Q = M^T P
        q = np.mean(own_q, axis=0)  # Q = all_reduce_mean(Q)
        mean = p @ q.T  # decompress(aggregate)
        # e_w = Delta_w - decompress(C(Delta_w)), algorithm 2
        errors = [one - p @ its_q.T for one, its_q in zip(m, own_q, strict=True)]
        means.append(mean)
    return means, errors, q


@both_kernels
@pytest.mark.parametrize(("rows", "cols", "rank", "workers"), [(30, 50, 3, 2), (70, 20, 1, 3)])
def test_five_steps_are_the_papers(rows: int, cols: int, rank: int, workers: int) -> None:
    """Each step rounds sums of up to 70 products (70 EPS = 4e-6 at worst, about 1e-6 in fact) and turns
    the space by that over the gap of P's singular values, here at least 0.2; over 5 steps that adds up:
    1e-4 of the norm."""
    of_worker = [
        [normal(100 * s + w, rows, cols) + normal(999, rows, cols) for w in range(workers)]
        for s in range(5)
    ]
    q = first_q(rank, cols, "error_feedback")
    means, errors, last_q = reference(doubles(of_worker), q)
    exchange = world(ErrorFeedback(PowerSGD(rank)), {"w": torch.empty(rows, cols)}, workers)
    for of_step, expected in zip(of_worker, means, strict=True):
        mean = step(exchange, *({"w": one} for one in of_step))["w"]
        assert relative(mean - torch.tensor(expected), torch.tensor(expected)) <= 1e-4
    for worker, error in enumerate(errors):
        state = exchange.states(worker)
        expected = torch.tensor(error)
        assert relative(state["residual"]["w"] - expected, expected) <= 1e-4
        expected = torch.tensor(last_q.T)
        assert relative(state["inner.q"]["w"] - expected, expected) <= 1e-4


@both_kernels
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_a_worker_sends_is_a_projection(rank: int) -> None:
    """||M - own||^2 + ||own||^2 = ||M||^2, whatever the others send; float32 to 1e-6."""
    for index in range(2):
        m = normal(10 + index, 20, 30)
        method, others = PowerSGD(rank), World(2)
        given = [Batch(("w",), [one]) for one in (m.clone(), normal(20, 20, 30))]
        method.setup(given[0], others)
        out = Batch(("w",), [torch.empty(20, 30)])
        own, _ = driven(method.step(given, out, others, context()), others)
        assert isinstance(own, LowRank)
        sent = dense(own, 600).view(20, 30).double()
        left, whole = (m - sent).square().sum(), m.double().square().sum()
        assert float(left + sent.square().sum()) == pytest.approx(float(whole), rel=1e-6)
        assert float(left) < float(whole)


@both_kernels
def test_a_tensor_whose_gradient_was_zero_is_not_lost() -> None:
    """A warm start from zero would stay zero for ever."""
    compressor = ErrorFeedback(PowerSGD(2))
    exchange = world(compressor, {"w": torch.empty(12, 15)})
    for _ in range(2):
        mean = alike(exchange, torch.zeros(12, 15))
        assert bool((mean == 0).all())
    m = normal(7, 12, 2) @ normal(8, 2, 15)
    mean = alike(exchange, m)
    assert relative(mean - m, m) <= 1e-5


@both_kernels
def test_a_column_lost_to_a_gradient_of_lower_rank_comes_back() -> None:
    exchange = world(PowerSGD(3), {"w": torch.empty(20, 25)})
    for rank in (1, 3, 3):
        m = normal(rank, 20, rank) @ normal(rank + 10, rank, 25)
        mean = alike(exchange, m)
        assert bool(mean.isfinite().all())
    assert relative(mean - m, m) <= 1e-5


@both_kernels
def test_layers_of_one_shape_and_different_scale_do_not_see_each_other() -> None:
    """From 1e-25, whose squares underflow, to 1e25, whose squares overflow: each as by itself."""
    scales = {f"w{i}": 10.0**power for i, power in enumerate((-25, -5, 0, 25))}
    like = {name: torch.empty(16, 18) for name in scales}
    together = world(PowerSGD(2), like)
    apart = {name: world(PowerSGD(2), {name: like[name]}) for name in like}
    for turn in range(3):
        gradients = {
            name: scale * (normal(turn, 16, 2) @ normal(50 + i, 2, 18))
            for i, (name, scale) in enumerate(scales.items())
        }
        means = step(together, *({n: g.clone() for n, g in gradients.items()} for _ in range(2)))
        for name, gradient in gradients.items():
            single = step(apart[name], *({name: gradient.clone()} for _ in range(2)))[name]
            assert torch.equal(means[name], single)
            unit = gradient.double() / scales[name]
            assert relative(means[name].double() / scales[name] - unit, unit) <= 1e-5


def test_a_convolution_is_output_channels_by_the_rest() -> None:
    shape = (6, 4, 3, 3)
    m = normal(1, *shape)
    conv = alike(world(PowerSGD(2), {"w": m}), m)
    flat = m.view(6, 36)
    plain = alike(world(PowerSGD(2), {"w": flat}), flat)
    assert torch.equal(conv, plain.view(shape))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(8, 8), (10, 30)],
         "rank: 9 is above every matrix of the model; the largest, 10 x 30, takes at most 7"),
        ([(9,), (2, 2)],
         "rank: 9 is above every matrix of the model; the largest, 2 x 2, is no larger"),
        ([(9,), ()], "rank: no tensor here is a matrix, nothing would be compressed (exchange.unit=model"),
    ],
)  # fmt: skip
def test_a_rank_above_every_matrix_is_refused(shapes: list[tuple[int, ...]], message: str) -> None:
    like = {str(index): torch.empty(shape) for index, shape in enumerate(shapes)}
    for nest in (PowerSGD(9), Ladder((Dense(), ErrorFeedback(PowerSGD(9))))):
        with pytest.raises(UserError, match="^" + re.escape(f"compressor.{message}")):
            world(nest, like)
    fitting = {**like, "large": torch.empty(20, 20)}  # one that fits is enough
    world(PowerSGD(9), fitting)
    with pytest.raises(UserError, match=re.escape("compressor.rank: no tensor here is a matrix")):
        Exchange(PowerSGD(1), fitting, World(2), unit="model")
