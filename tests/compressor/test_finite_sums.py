"""A wrapper adds finite numbers to a gradient: whoever finds the sum finite has looked at the gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from laws import copied
from thresholded import context, heavy_tailed

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel import native
from dgc_repro.kernel.workspace import Finite
from dgc_repro.policy.interface import Plan

NESTS = (
    ErrorFeedback(TopK(0.01)),
    ErrorFeedback(Uniform(8)),
    MomentumCorrection(ErrorFeedback(TopK(0.01))),
    MomentumCorrection(ErrorFeedback(Uniform(4)), nesterov=True, masking=False),
    MomentumCorrection(TopK(0.01), momentum=0.0, nesterov=True),
    BlockMomentum(Uniform(8)),
    BlockMomentum(TopK(0.01), momentum=0.0),
)


@pytest.mark.skipif(native.library() is None, reason="without C kernels nothing is reported")
@pytest.mark.parametrize("nest", NESTS, ids=repr)
def test_a_look_at_the_sum_is_a_look_at_the_gradient(nest: Compressor) -> None:
    for bad in (None, torch.nan, torch.inf, -torch.inf):
        x = heavy_tailed(5_000)
        if bad is not None:
            x[40] = bad
        seen = Finite()
        next(nest.exchange(x, nest.init(x), replace(context(), finite=seen)))
        assert (x in seen) == (bad is None)


def test_what_reads_a_part_tells_nothing_of_the_gradient() -> None:
    nest, x, seen = ErrorFeedback(RandomK(0.01)), heavy_tailed(5_000), Finite()
    next(nest.exchange(x, nest.init(x), replace(context(), finite=seen)))
    assert x not in seen


@pytest.mark.skipif(native.library() is None, reason="without C kernels nothing is reported")
def test_a_sum_beyond_float32_leaves_the_look_at_the_gradient_to_others() -> None:
    nest, seen = ErrorFeedback(TopK(0.01)), Finite()
    x = torch.full((100,), 3e38)
    state = nest.init(x)
    state["residual"].fill_(3e38)
    next(nest.exchange(x, state, replace(context(), finite=seen)))
    assert x not in seen


def test_tensors_are_told_apart_and_forgotten_together() -> None:
    seen = Finite()
    first, second, total = torch.ones(3), torch.ones(3), torch.ones(3)
    seen.add_with(total, (first,))
    seen.add(second)
    assert second in seen
    assert first not in seen
    seen.add(total)
    assert first in seen
    seen.clear()
    seen.add(total)
    assert first not in seen
    seen.add_with(total, (total,))  # in place
    seen.add(total)
    assert total in seen


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("compressor", [ErrorFeedback(Uniform(8)), TopK(0.1)], ids=repr)
def test_in_one_vector_of_all_the_broken_tensor_is_named(
    compressor: Compressor, broken: float
) -> None:
    like = {"first": heavy_tailed(300), "second": heavy_tailed(200)}
    device = torch.device("cpu")
    link = Link(SimulatedWire(1, device), Ledger(), Clock(device))
    exchange = GradientExchange(compressor, like, link, unit="model")
    exchange.open(0, copied(like), Plan(0))
    assert not exchange.non_finite
    exchange.finish()
    exchange.commit()
    bad = copied(like)
    bad["second"][3] = broken
    exchange.open(0, bad, Plan(0))
    assert exchange.non_finite == {0: "second"}
