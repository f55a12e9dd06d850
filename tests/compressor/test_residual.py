"""Which residuals are refused, with what words, and how those grow that are and that are not."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
import torch
from laws import play, simulation
from numeric import context
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.residual import expands
from dgc_repro.kernel.batch import Batch
from dgc_repro.selfcheck.law_settings.base import Setting

GROW = (D.QSGD(7), D.QSGD(127, None), D.SignSGD(), D.RandomK(unbiased=True))
BOUNDED = (
    *(D.QSGD(12), D.QSGD(1, norm="max"), D.Uniform(2, "stochastic"), D.TernGrad()),
    D.RandomK(0.01),
)


def within(inner: Any) -> list[Any]:
    """The method, and the method inside what may stand between."""
    return [inner, D.PerLayer(inner), D.Ladder((D.Dense(), D.Uniform(8), inner))]


@pytest.mark.parametrize("method", GROW, ids=str)
def test_a_residual_at_the_workers_that_would_grow_is_a_line(method: Compressor) -> None:
    said = f"inner: what {type(method).__name__} loses, as it is set, is more than it is given: "
    wrappers = {"error_feedback": D.ErrorFeedback, "block_momentum": D.BlockMomentum}
    for nest, (name, wrapper) in product(within(method), wrappers.items()):
        line = f"{said}its residual would grow without bound; leave {name} out"
        with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
            wrapper(nest)


@pytest.mark.parametrize("method", BOUNDED, ids=str)
def test_a_residual_that_has_an_end_is_kept(method: Compressor) -> None:
    for nest in within(method):
        D.ErrorFeedback(nest)
        D.BlockMomentum(nest)
    assert not expands(method)


@pytest.mark.parametrize(
    ("levels", "bucket"), [(1, 3), (1, 5), (2, 15), (2, 17), (7, 190), (7, 202)]
)
def test_the_two_norm_contracts_below_4_levels_squared_values(levels: int, bucket: int) -> None:
    """Equal values lie f = levels / sqrt(bucket) steps above 0, near 1/2, the worst there is: their noise
    is f (1 - f) steps squared, what they are f^2. Each squared error is near 1/4: 60,000 of them say it."""
    x, setting = torch.ones(60_000 // bucket * bucket), D.QSGD(levels, bucket)
    share = float(setting.energies(Batch(("w",), [x]), context())) / x.numel()
    assert setting.expands == (bucket >= 4 * levels**2)
    assert (share < 0) == setting.expands
    assert abs(share) > 0.005


def residuals(method: Any, n: int, steps: int) -> Tensor:
    """The norm of what is owed after each step, in norms of a gradient."""
    compressor = D.ErrorFeedback.__new__(D.ErrorFeedback)  # what would be refused, too
    object.__setattr__(compressor, "inner", method)
    setting, source = Setting("", compressor), torch.Generator().manual_seed(0)
    exchange = simulation(setting, 1, {"x": torch.empty(n)})
    norms = []
    for _ in range(steps):
        play(exchange, setting, [{"x": torch.randn(n, generator=source)}])
        norms.append(float(exchange.states(0)["residual"]["x"].norm()) / n**0.5)
    return torch.tensor(norms)


def test_what_is_refused_grows_without_bound() -> None:
    owed = residuals(D.QSGD(7), 2048, 60)
    assert owed[29] > 20
    assert owed[59] > 2 * owed[29]


@pytest.mark.parametrize(
    ("method", "d"),
    [(D.QSGD(1, 64, "max"), 64), (D.Uniform(2, "stochastic", 64), 64), (D.TernGrad(None), 1024)],
    ids=str,
)
def test_one_step_up_to_the_largest_settles_at_a_share_of_the_root(method: Any, d: int) -> None:
    """0.36 sqrt(d) gradients, within a fifth; and no more of it later."""
    owed = residuals(method, 1024, 240)
    for part in (owed[120:180], owed[180:]):
        assert 0.8 * 0.36 * d**0.5 < float(part.mean()) < 1.2 * 0.36 * d**0.5
