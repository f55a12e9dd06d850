"""signSGD: the majority's sign, ties, zeros, and bits that are bits."""

from __future__ import annotations

import pytest
import torch
from laws import Setting, play, simulation
from quantizing import context, exchanged, heavy_tailed, kernels

from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.nesting import check_nesting
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.exchange.payload import num_bytes

__all__ = ["kernels"]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 9])
def test_the_answer_is_the_sign_of_the_sum_of_signs(workers: int) -> None:
    """Algorithm 1 of the majority vote: sign(sum over workers of sign(g)); a tie is 0."""
    gradients = [heavy_tailed(worker) for worker in range(workers)]
    expected = torch.stack(gradients).double().numpy()
    answer = exchanged(SignSGD(), gradients)
    assert torch.equal(answer.double(), torch.from_numpy(expected).sign().sum(0).sign())
    assert bool((answer == 0).any()) == (workers % 2 == 0)


@pytest.mark.usefixtures("kernels")
def test_what_is_zero_everywhere_cancels() -> None:
    """At once with an even number of workers, over two steps with an odd one."""
    zeros = torch.zeros(50)
    zeros[::2] *= -1
    for workers in (2, 4):
        assert not exchanged(SignSGD(), [zeros] * workers).any()
    for workers in (1, 3):
        first = exchanged(SignSGD(), [zeros] * workers)
        second = exchanged(SignSGD(), [zeros] * workers, steps=2)
        assert torch.equal(first.abs(), torch.ones(50))
        assert torch.equal(first, -second)


@pytest.mark.usefixtures("kernels")
def test_a_decoded_value_is_plus_or_minus_one_and_nothing_else() -> None:
    """Elsewhere a bitwise not of bytes has made 255 and 254 of them."""
    x = heavy_tailed(3)
    x[::7] = 0
    decoded = SignSGD().encode(x, context()).dense()
    assert decoded.unique().tolist() == [-1.0, 1.0]
    assert torch.equal(decoded[x != 0], x[x != 0].sign())


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 4), (32, 4), (33, 8), (8192, 1024)])
def test_one_bit_a_value_is_sent(size: int, expected: int) -> None:
    own = SignSGD().encode(torch.ones(size), context())
    assert num_bytes(own) == expected
    assert own.num_floats == size / 32


def test_signum_is_momentum_correction_around_it() -> None:
    """Workers send the sign of m u + g; Signum's factor 1 - m changes no sign."""
    setting = Setting("signum", MomentumCorrection(SignSGD(), 0.9))
    check_nesting(setting.compressor)
    exchange = simulation(setting, 3, {"x": torch.zeros(501)})
    momenta = torch.zeros(3, 501)
    for step in range(4):
        gradients = torch.stack([heavy_tailed(3 * step + worker, 501) for worker in range(3)])
        momenta = 0.9 * momenta + 0.1 * gradients
        mean = play(exchange, setting, [{"x": g.clone()} for g in gradients])["x"]
        assert torch.equal(mean, momenta.sign().sum(0).sign())
