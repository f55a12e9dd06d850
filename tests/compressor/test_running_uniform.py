"""The quantizer whose scale never falls, against its formula in numpy and against `Uniform`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import dense, heavy_tailed, run

from dgc_repro import ErrorFeedback, RunningUniform, Uniform
from dgc_repro.compressor.uniform import ROUNDINGS


@pytest.mark.parametrize("bits", [3, 4, 8, 12])
def test_a_later_step_uses_the_largest_magnitude_so_far(bits: int) -> None:
    """(round(x / s)) s with s = m / Q, halves to even, in float64."""
    method = RunningUniform(bits)
    largest, own = 0.0, method
    for step, scale in enumerate((0.1, 1.0, 0.3, 0.001)):
        x = scale * heavy_tailed(5003, seed=step)
        outcome = run(own, x, set_up=step > 0)
        own, largest = outcome.method, max(largest, float(x.abs().max()))
        assert float(own.states(0)["largest"].flat) == largest
        grid = largest / (2 ** (bits - 1) - 1)
        places = x.double().numpy() / grid
        sent = dense(outcome.own).double().numpy()
        clear = (
            np.abs(places - np.floor(places) - 0.5) > 1e-4
        )  # float32 may round a half either way
        assert clear.mean() > 0.99
        np.testing.assert_allclose(sent[clear], (np.rint(places) * grid)[clear], rtol=1e-5)
    assert not sent.any() or bits > 8  # the last step is far below half of a grid step


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_first_step_sends_what_uniform_sends(rounding: str) -> None:
    x = heavy_tailed(5003)
    own, plain = (dense(run(method(6, rounding), x).own) for method in (RunningUniform, Uniform))
    assert torch.equal(own, plain)


def test_error_feedback_keeps_what_falls_below_the_grid() -> None:
    """A value of a twentieth of the first step's scale / Q is sent after some steps, and none is lost."""
    method = ErrorFeedback(RunningUniform(4))
    x = torch.tensor([7.0, 0.0])
    own = run(method, x).method
    small, total = torch.tensor([0.0, 0.05]), 0.0
    for _ in range(100):
        outcome = run(own, small, set_up=True)
        own, total = outcome.method, total + float(outcome.mean[1])
    assert total == pytest.approx(5.0, abs=0.5)
