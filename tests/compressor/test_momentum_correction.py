"""Momentum correction and block momentum against their papers in numpy, and what masking means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from laws import Setting, play, same_bits, simulation, states_by_tensor
from numeric import EPS, Array, assert_close, gaussian
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.block_momentum import stretch
from dgc_repro.compressor.interface import Compressor, Context, PerTensor
from dgc_repro.selfcheck.methods import copied

Arrays = dict[str, Array]
SHAPES = {"weight": (17, 9), "filter": (5, 4, 3, 3), "bias": (23,)}
NUM_STEPS, NUM_WORKERS = 6, 3


def gradients(worker: int, step: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(100 * worker + step)
    return {name: torch.randn(*shape, generator=source) for name, shape in SHAPES.items()}


def deep_gradient_compression(
    grads: list[list[Mapping[str, Array]]],
    density: float,
    *,
    m: float,
    nesterov: bool,
    masking: bool,
    threshold: float | None,
) -> list[Arrays]:
    """Algorithms 4 and 5 of Lin et al., as printed; grads[step][worker] of the local mean loss.
    What each step adds up over workers."""
    N = len(grads[0])
    U = [{name: np.zeros_like(g) for name, g in grads[0][0].items()} for _ in range(N)]
    V = [{name: np.zeros_like(g) for name, g in grads[0][0].items()} for _ in range(N)]
    sums = []
    for step in grads:
        total = {name: np.zeros_like(g) for name, g in step[0].items()}
        for k, local in enumerate(step):
            G = {name: g / N for name, g in local.items()}  # 5: G <- G + 1/(N b) grad f(x; w)
            if threshold is not None:  # 8-10, section 3.3: thr of a worker = N^-1/2 thr
                norm = np.sqrt(sum((g**2).sum() for g in G.values()))
                G = {n: g * min(1.0, N**-0.5 * threshold / norm) for n, g in G.items()}
            for name, g in G.items():
                if nesterov:  # algorithm 5, 11-12
                    U[k][name] = m * (U[k][name] + g)
                    V[k][name] = V[k][name] + U[k][name] + g
                else:  # algorithm 4, 11-12
                    U[k][name] = m * U[k][name] + g
                    V[k][name] = V[k][name] + U[k][name]
                v = V[k][name]
                kept = max(1, round(density * v.size))
                thr = np.sort(np.abs(v).ravel())[-kept]  # 14: thr <- s% of |V[j]|
                mask = np.abs(v) >= thr  # 15
                total[name] += v * mask  # 16, 20
                V[k][name] = v * ~mask  # 17
                if masking:
                    U[k][name] = U[k][name] * ~mask  # 18
        sums.append(total)
    return sums


def ours(compressor: Compressor) -> list[dict[str, Tensor]]:
    setting = Setting("dgc", compressor)
    exchange = simulation(setting, NUM_WORKERS, gradients(0, 0))
    return [
        copied(play(exchange, setting, [gradients(w, step) for w in range(NUM_WORKERS)]))
        for step in range(NUM_STEPS)
    ]


@pytest.mark.parametrize("threshold", [None, 3.0])
@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_nest_is_the_papers(nesterov: bool, masking: bool, threshold: float | None) -> None:
    nest: Compressor = D.MomentumCorrection(D.ErrorFeedback(D.TopK(0.1)), 0.9, nesterov, masking)
    if threshold is not None:
        nest = D.ClipLocal(nest, threshold)
    grads: list[list[Mapping[str, Array]]] = [
        [{n: g.double().numpy() for n, g in gradients(w, s).items()} for w in range(NUM_WORKERS)]
        for s in range(NUM_STEPS)
    ]
    if threshold is not None:  # else nothing is tried
        norm = np.sqrt(sum((g**2).sum() for g in grads[0][0].values()))
        assert norm / NUM_WORKERS > threshold * NUM_WORKERS**-0.5
    expected = deep_gradient_compression(
        grads, 0.1, m=0.9, nesterov=nesterov, masking=masking, threshold=threshold
    )
    for mean, wanted in zip(ours(nest), expected, strict=True):
        # Every sum of up to 6 steps rounds 4 times a step, of values below 64.
        within = 64 * 4 * NUM_STEPS * EPS
        assert_close([*mean.values()], [wanted[name] for name in mean], within)


def states_after_two_steps(nest: Compressor) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    """One worker, one tensor: the states before and after the second step, and what was sent."""
    setting = Setting("x", nest)
    exchange = simulation(setting, 1, {"x": torch.zeros(40)})
    play(exchange, setting, [{"x": gaussian(40, 0)}])
    before = states_by_tensor(exchange, 0)["x"]
    sent = play(exchange, setting, [{"x": gaussian(40, 1)}])["x"]  # the mean over one worker
    return before, states_by_tensor(exchange, 0)["x"], sent


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_not_sent_of_the_velocity_stays(nesterov: bool) -> None:
    """old residual + what momentum makes of the gradient = sent + new residual, entry by entry."""
    nest = D.MomentumCorrection(D.ErrorFeedback(D.TopK(0.2)), 0.5, nesterov)
    before, after, sent = states_after_two_steps(nest)
    velocity = 0.5 * before["velocity"] + gaussian(40, 1)
    step = gaussian(40, 1) + 0.5 * velocity if nesterov else velocity
    owed = before["inner.residual"] + step
    assert (sent != 0).sum() == 8
    assert torch.equal(sent + after["inner.residual"], owed)  # an entry is in one of the two


@pytest.mark.parametrize(
    "leaf",
    [
        *(D.TopK(0.2), D.DGCSampled(0.2), D.Threshold(0.2), D.SIDCo(0.2)),
        *(D.RedSync(0.2, search_from=0), D.RedSync(0.2, quantized=True)),
        *(D.RandomK(0.2), D.RandomK(0.2, shared=False), D.SparseLoCo(0.2, 16)),
    ],
    ids=str,
)
def test_whatever_says_which_entries_it_sent_masks_them(leaf: Compressor) -> None:
    _, after, sent = states_after_two_steps(D.MomentumCorrection(D.ErrorFeedback(leaf)))
    assert 0 < (sent != 0).sum() < 40
    assert torch.equal(after["velocity"] == 0, sent != 0)
    unmasked = D.MomentumCorrection(D.ErrorFeedback(leaf), masking=False)
    assert states_after_two_steps(unmasked)[1]["velocity"].all()


@pytest.mark.parametrize(
    "inside",
    [D.Dense(), D.ErrorFeedback(D.Uniform(4)), D.PerLayer(D.ErrorFeedback(D.TopK(0.2)))],
    ids=["dense", "uniform", "an exempt vector"],
)
def test_a_payload_that_holds_everything_masks_nothing(inside: Compressor) -> None:
    """And what goes dense inside has momentum too."""
    before, after, sent = states_after_two_steps(D.MomentumCorrection(inside, 0.5))
    assert torch.equal(after["velocity"], 0.5 * before["velocity"] + gaussian(40, 1))
    assert same_bits(sent, after["velocity"]) == ("Uniform" not in str(inside))


# Block momentum with error feedback.

RATES = (0.0, 0.1, 0.2, 0.2, 0.05, 0.05)  # a warm-up, a plateau, a decay


@dataclass(frozen=True)
class ScaledSign(PerTensor):
    """The paper's compressor of a block: its mean magnitude times its signs (sent whole here)."""

    def compress(self, tensor: Tensor, context: Context) -> list[Tensor]:
        return [tensor.abs().double().mean().float() * tensor.sign()]

    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return parts[0].view(shape)


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


def test_block_momentum_is_the_workers_side_of_the_papers_algorithm() -> None:
    setting = Setting("block", D.BlockMomentum(ScaledSign(), 0.9))
    exchange = simulation(setting, NUM_WORKERS, gradients(0, 0))
    for step, wanted in enumerate(dist_ef_block_sgdm(0.9, RATES)):
        exchange.learning_rate = RATES[step]
        means = play(exchange, setting, [gradients(w, step) for w in range(NUM_WORKERS)])
        # Six steps of about 8 roundings each, of values below 64 (p grows to 4 times its size
        # where the rate falls to a quarter).
        within = 64 * 8 * len(RATES) * EPS
        assert_close([means[name] for name in wanted], [*wanted.values()], within)


def test_a_step_that_changes_no_weight_divides_by_nothing_and_keeps_what_is_owed() -> None:
    assert (stretch(0.1, 0.0), stretch(0.0, 0.1), stretch(0.2, 0.1)) == (1.0, 0.0, 2.0)
    setting = Setting("block", D.BlockMomentum(D.RandomK(factor=2)))
    exchange = simulation(setting, 1, {"x": gaussian(100)})
    exchange.learning_rate = 0.1
    play(exchange, setting, [{"x": gaussian(100)}])
    owed = exchange.states(0)["residual"]["x"].clone()
    assert owed.any()
    exchange.learning_rate = 0.0
    play(exchange, setting, [{"x": gaussian(100)}])
    assert torch.equal(exchange.states(0)["residual"]["x"], owed)
    assert exchange.states(0)["learning_rate"]["x"] == 0.1
