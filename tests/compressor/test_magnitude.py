"""The largest entries of the whole model, against numpy, and where they cannot be had."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import CPU, Setting, play
from thresholded import check_sound, context, heavy_tailed, largest, odd_tensors
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.magnitude import Magnitude
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ddp import fit_together
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.fixed import Fixed


def model(worker: int) -> dict[str, Tensor]:
    """Tensors whose scales differ by orders of magnitude."""
    return {
        "small": 1e-3 * heavy_tailed(3_000, worker).view(30, 100),
        "large": 10 * heavy_tailed(500, worker + 10),
        "middle": heavy_tailed(1_500, worker + 20).view(15, 100),
    }


def test_the_k_largest_of_the_whole_model_are_sent_and_averaged() -> None:
    setting = Setting("magnitude", Magnitude(0.02))
    link = Link(SimulatedWire(2), Ledger(), Clock(CPU))
    exchange = GradientExchange(setting.compressor, model(0), link, seed=7, unit="model")
    means = play(exchange, setting, [model(0), model(1)])
    expected = np.zeros(5_000)
    for worker in range(2):
        joined = np.concatenate(
            [tensor.double().numpy().ravel() for tensor in model(worker).values()]
        )
        places = largest(joined, 100)  # k = 0.02 of 5,000
        expected[places] += joined[places] / 2
    found = torch.cat([means[name].view(-1) for name in model(0)])
    # Halves of float32 numbers are exact; their sum is rounded once.
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))
    assert not bool(means["small"].any()), "small tensors have no share of their own"
    assert link.ledger.payload_bytes == 8 + 2 * 100 + 4 * 100


@pytest.mark.parametrize("nest", [Magnitude(0.1), ErrorFeedback(Magnitude(0.1))])
def test_tensor_by_tensor_is_refused_in_one_line(nest: Magnitude | ErrorFeedback) -> None:
    with pytest.raises(
        UserError, match=r"^exchange\.unit: Magnitude needs exchange\.unit=model, got"
    ):
        fit_together(nest, Fixed(), "layer", False)
    fit_together(nest, Fixed(), "model", False)


@pytest.mark.parametrize("name", odd_tensors())
def test_odd_tensors_send_exactly_k(name: str) -> None:
    x = odd_tensors()[name]
    found = Magnitude(0.1).select(x, context())
    check_sound(found, x)
    assert found.values.numel() == min(x.numel(), max(1, round(0.1 * x.numel())))


def test_a_stronger_setting_refines_the_survivors_to_what_it_would_choose_itself() -> None:
    x = heavy_tailed(10_000)
    weak = Magnitude(factor=10).select(x, context())
    strong, direct = Magnitude(factor=100).refine(weak, context()), Magnitude(factor=100)
    assert torch.equal(strong.indices, direct.select(x, context()).indices)


def test_a_wrong_density_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^density: a number above 0 and at most 1, or null, got 0"
    ):
        Magnitude(density=0)
