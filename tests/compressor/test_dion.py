"""Dion's exchange against the paper in numpy. Its steps: optimizer/test_muon.py."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from dion_reference import directions
from laws import play, simulation
from numeric import Array, both_kernels, first_q, normal
from torch import Tensor

from dgc_repro import Dion, ErrorFeedback, UserError
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.selfcheck.law_settings.base import Setting

MU = 0.95


def world(method: Dion, shape: tuple[int, ...], workers: int) -> Exchange:
    return simulation(Setting("", ErrorFeedback(method)), workers, {"w": torch.empty(shape)})


def answer(exchange: Exchange, gradients: list[Tensor]) -> Tensor:
    """A copy of the answer to each worker's gradient of "w"."""
    setting = Setting("", ErrorFeedback(Dion()))
    return play(exchange, setting, [{"w": g.clone()} for g in gradients])["w"].clone()


def momenta(exchange: Exchange) -> Tensor:
    """f32[workers, ...]."""
    return torch.stack([exchange.states(w)["residual"]["w"] for w in range(exchange.world.local)])


def off(found: Tensor, expected: Array) -> float:
    """The error over the norm."""
    return float(np.linalg.norm(found.double().numpy() - expected) / np.linalg.norm(expected))


SHAPES = {
    # shape, rank_fraction: rank, bytes of a step
    ((60, 40), 0.1): (4, 4 * 4 * (60 + 40)),
    ((40, 60), 0.26): (11, 4 * 11 * (40 + 60)),
    ((48, 48), 1 / 3): (16, 4 * 16 * (48 + 48)),
    ((33, 30), 0.6): (18, 4 * 33 * 30),  # factors would be larger
    ((30, 33), 1.0): (30, 4 * 30 * 33),
    ((8, 6, 3, 3), 0.25): (2, 4 * 2 * (8 + 54)),
}


@both_kernels
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("shape", "fraction"), SHAPES)
def test_six_steps_are_the_papers(shape: tuple[int, ...], fraction: float, workers: int) -> None:
    """Each step rounds sums of up to 60 products (60 EPS = 4e-6 at worst). Columns of P that are almost
    dependent multiply that, here by less than 30: 1e-4 of the norm. Momenta are sums: 1e-6."""
    rank, num_bytes = SHAPES[shape, fraction]
    given = [
        [normal(100 * s + w, *shape) + normal(999, *shape) for w in range(workers)]
        for s in range(6)
    ]
    flat = [[g.view(shape[0], -1).double().numpy() for g in of_step] for of_step in given]
    expected, mean_momentum = directions(
        flat, first_q(rank, min(flat[0][0].shape), "error_feedback"), MU
    )
    exchange = world(Dion(fraction), shape, workers)
    for of_step, direction in zip(given, expected, strict=True):
        found = answer(exchange, of_step)
        assert off(found.view(shape[0], -1), direction) <= 1e-4
    assert off(momenta(exchange).mean(0).view(shape[0], -1), mean_momentum) <= 1e-6
    assert exchange.world.ledger.payload_bytes == 6 * num_bytes


def test_what_is_sent_decays_in_each_workers_own_momentum() -> None:
    """M_1 - M_2 becomes (I - (1 - mu) P P^T) (M_1 - M_2 + G_1 - G_2), where P spans the answer's columns. By
    the paper's rule, which subtracts the mean, it becomes M_1 - M_2 + G_1 - G_2."""
    exchange, apart = world(Dion(0.25), (30, 20), 2), np.zeros((30, 20))
    for step in range(20):
        one, other = normal(step, 30, 20), normal(100 + step, 30, 20)
        u, _, _ = np.linalg.svd(answer(exchange, [one, other]).double().numpy())
        apart += (one.double() - other.double()).numpy()
        apart -= (1 - MU) * u[:, :5] @ (u[:, :5].T @ apart)
    first, second = momenta(exchange)
    assert off(first - second, apart) <= 1e-5


@both_kernels
def test_a_matrix_whose_gradient_was_zero_is_not_lost() -> None:
    exchange = world(Dion(0.25), (12, 16), 2)
    for _ in range(2):
        assert bool((answer(exchange, [torch.zeros(12, 16)] * 2) == 0).all())
    m = normal(7, 12, 1) @ normal(8, 1, 16)
    found = answer(exchange, [m, m])  # rank 3 for a matrix of rank 1
    assert off(found, (m / m.norm()).double().numpy()) <= 1e-5


def test_a_model_without_matrices_is_refused() -> None:
    with pytest.raises(
        UserError, match=re.escape("compressor.rank_fraction: no tensor here is a matrix")
    ):
        world(Dion(), (9,), 2)
