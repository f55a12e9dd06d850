"""Blockwise momentum with error feedback against the paper's algorithm in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from laws import Setting, play, simulation
from numeric import EPS, Array, gaussian
from torch import Tensor

from dgc_repro import BlockMomentum, RandomK
from dgc_repro.compressor.block_momentum import stretch
from dgc_repro.compressor.interface import Context, PerTensor

SHAPES = {"weight": (17, 9), "bias": (23,)}
RATES = (0.0, 0.1, 0.2, 0.2, 0.05, 0.05)  # a warm-up, a plateau, a decay
NUM_WORKERS = 3


@dataclass(frozen=True)
class ScaledSign(PerTensor):
    """The paper's compressor of a block: its mean magnitude times its signs (sent whole here)."""

    def compress(self, tensor: Tensor, context: Context) -> list[Tensor]:
        return [tensor.abs().double().mean().float() * tensor.sign()]

    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return parts[0].view(shape)


def gradients(worker: int, step: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(100 * worker + step)
    return {name: torch.randn(*shape, generator=source) for name, shape in SHAPES.items()}


def dist_ef_block_sgdm(mu: float, rates: Sequence[float]) -> list[dict[str, Array]]:
    """Workers of Zheng et al. with Nesterov's momentum; the mean of what they push, each step."""
    zero = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    m, e = ([dict(zero) for _ in range(NUM_WORKERS)] for _ in range(2))
    last, means = 0.0, []
    for t, eta in enumerate(rates):
        ratio = last / eta if eta > 0 else 1.0
        mean = dict(zero)
        for i in range(NUM_WORKERS):
            for name, gradient in gradients(i, t).items():
                g = gradient.double().numpy()
                m[i][name] = mu * m[i][name] + g  # m_t = mu m_{t-1} + g_t
                p = (
                    mu * m[i][name] + g + ratio * e[i][name]
                )  # p_t = mu m_t + g_t + eta_{t-1}/eta_t e_t
                delta = np.abs(p).sum() / p.size * np.sign(p)  # Delta_t = ||p_b||_1 / d_b sign(p_b)
                e[i][name] = p - delta  # e_{t+1} = p_t - Delta_t
                mean[name] = mean[name] + delta / NUM_WORKERS
        last = eta
        means.append(mean)
    return means


def test_the_wrapper_is_the_workers_side_of_the_papers_algorithm() -> None:
    setting = Setting("block", BlockMomentum(ScaledSign(), 0.9))
    exchange = simulation(setting, NUM_WORKERS, gradients(0, 0))
    for step, wanted in enumerate(dist_ef_block_sgdm(0.9, RATES)):
        exchange.learning_rate = RATES[step]
        means = play(exchange, setting, [gradients(w, step) for w in range(NUM_WORKERS)])
        for name, mean in means.items():
            # Six steps of about 8 roundings each, of values below 64 (p grows to 4 times its size
            # where the rate falls to a quarter).
            np.testing.assert_allclose(
                mean.double().numpy(), wanted[name], rtol=0, atol=64 * 8 * len(RATES) * EPS
            )


def test_the_residual_keeps_its_worth_when_the_rate_changes() -> None:
    """eta e, a change of weights, is what is owed: at a tenth of the rate e counts ten times."""
    setting = Setting("block", BlockMomentum(ScaledSign(), 0.0))
    exchange = simulation(setting, 1, {"x": torch.zeros(4)})
    exchange.learning_rate = 1.0
    play(exchange, setting, [{"x": torch.tensor([1.0, 2.0, 3.0, 6.0])}])
    owed = exchange.states(0)["residual"]["x"].clone()
    assert owed.tolist() == [-2.0, -1.0, 0.0, 3.0]
    exchange.learning_rate = 0.125
    sent = play(exchange, setting, [{"x": torch.zeros(4)}])["x"]
    assert torch.equal(sent + exchange.states(0)["residual"]["x"], 8 * owed)


def test_a_step_that_changes_no_weight_divides_by_nothing_and_keeps_what_is_owed() -> None:
    assert (stretch(0.1, 0.0), stretch(0.0, 0.1), stretch(0.2, 0.1)) == (1.0, 0.0, 2.0)
    setting = Setting("block", BlockMomentum(RandomK(factor=2)))
    exchange = simulation(setting, 1, {"x": gaussian(100)})
    exchange.learning_rate = 0.1
    play(exchange, setting, [{"x": gaussian(100)}])
    owed = exchange.states(0)["residual"]["x"].clone()
    assert owed.any()
    exchange.learning_rate = 0.0
    play(exchange, setting, [{"x": gaussian(100)}])
    assert torch.equal(exchange.states(0)["residual"]["x"], owed)
    assert exchange.states(0)["learning_rate"]["x"] == 0.1
