"""The largest entries of the whole model, against numpy, and where they cannot be had."""

from __future__ import annotations

import numpy as np
import pytest
from laws import Setting, play, simulation
from numeric import heavy_tailed, topk
from torch import Tensor, cat

from dgc_repro import ErrorFeedback, Magnitude, UserError
from dgc_repro.exchange.ddp import fit_together
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.policy.fixed import Fixed


def model(worker: int) -> dict[str, Tensor]:
    """Tensors whose scales differ by orders of magnitude."""
    return {
        "small": 1e-3 * heavy_tailed(3_000, worker, 1.0).view(30, 100),
        "large": 10 * heavy_tailed(500, worker + 10, 1.0),
        "middle": heavy_tailed(1_500, worker + 20, 1.0).view(15, 100),
    }


def test_the_k_largest_of_the_whole_model_are_sent_and_averaged() -> None:
    setting = Setting("magnitude", Magnitude(0.02))
    link = simulation(setting, 2, model(0)).link
    exchange = GradientExchange(setting.compressor, model(0), link, seed=7, unit="model")
    means = play(exchange, setting, [model(0), model(1)])
    joined = [cat([t.view(-1) for t in model(worker).values()]).double() for worker in range(2)]
    expected = sum(topk(x.numpy(), 100) for x in joined) / 2  # k = 0.02 of 5,000
    found = cat([means[name].view(-1) for name in model(0)])
    # Halves of float32 numbers are exact; their sum is rounded once.
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))
    assert not bool(means["small"].any()), "small tensors have no share of their own"
    assert link.ledger.payload_bytes == 8 + 2 * 100 + 4 * 100


@pytest.mark.parametrize("nest", [Magnitude(0.1), ErrorFeedback(Magnitude(0.1))])
def test_tensor_by_tensor_is_refused_in_one_line(nest: Magnitude | ErrorFeedback) -> None:
    said = r"^exchange\.unit: Magnitude needs exchange\.unit=model, got"
    with pytest.raises(UserError, match=said):
        fit_together(nest, Fixed(), "layer", False)
    fit_together(nest, Fixed(), "model", False)
