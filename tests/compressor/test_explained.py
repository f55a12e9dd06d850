"""What policies compare: ||x||^2 - ||x - C(x)||^2 of every method that can tell it, and its gains."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from laws import leaves
from numeric import both_kernels, context, dense, gaussian, heavy_tailed, run
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.interface import Measurable
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.exchange.world import World
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.policy.interface import Plan
from dgc_repro.policy.probed import Probed

METHODS = leaves(Measurable)


@both_kernels
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_energy_is_what_sending_explains(method: Any) -> None:
    """With the random numbers that the energy was taken with, of which a sample would be others."""
    x = heavy_tailed()
    if hasattr(method, "sample"):
        method = replace(method, sample=1.0)
    energy = energy_of(method, x)
    assert energy.dtype == torch.float64
    exact = x.double()
    whole = exact.square().sum()
    sent = dense(run(method, x, context(path=("energy",))).own, x.numel()).double()
    expected = whole - (exact - sent).square().sum()
    assert abs(float(energy - expected)) <= 1e-6 * float(whole)


SPARSIFIERS: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {}) for kind in (D.TopK, D.DGCSampled, D.RedSync, D.SIDCo)),
    *((D.Threshold, {"sample": sample}) for sample in (0.1, 1.0)),
    (D.RedSync, {"search_from": 0}), (D.RedSync, {"quantized": True}),
    *((D.SIDCo, {"fit": fit}) for fit in ("gamma", "pareto")), (D.DGCSampled, {"sample": 1.0}),
    *((D.RandomK, {"shared": shared}) for shared in (True, False)),
    *((D.RandomK, {"shared": shared, "unbiased": True}) for shared in (True, False)),
]  # fmt: skip


def energy_of(method: Any, x: Tensor, path: tuple[str, ...] = ()) -> Tensor:
    """f64[]"""
    found: Tensor = method.energies(Batch(("w",), [x]), context(path=path))[0]
    return found


def probed(ladder: D.Ladder, x: Tensor, candidates: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The energies that a lone worker's ladder tells the policy, and what it then sends of the second
    candidate, decoded."""
    told: list[Tensor] = []

    def choose(energies: Tensor) -> int:
        return candidates[1]

    def noted(world: World, terms: list[Tensor]) -> Any:
        told.append(terms[0].clone())
        return total(world, terms)

    total = World.total
    where = replace(context(), plan=Plan(None, candidates=candidates), choose=choose)
    with patch.object(World, "total", noted):
        sent = run(ladder, x, where).own
    return told[0] * 2, dense(sent, x.numel())  # one of two workers tells its half of their mean


@pytest.mark.parametrize(("kind", "settings"), SPARSIFIERS, ids=str)
def test_a_ladder_tells_the_energy_of_what_it_sends(kind: Any, settings: dict[str, Any]) -> None:
    """Of a rung that is measured alone, that is its own `energy`; of one that was chosen among a weaker
    one's survivors, of that choice. Energies below zero are larger than the tensor's."""
    x = heavy_tailed(9001)  # 3,000 and 900 entries: more than one scale, and one
    rungs = [kind(factor=factor, **settings) for factor in (3, 10)]
    ladder = D.Ladder((D.Dense(), *rungs))
    exact, whole = x.double(), float(x.double().square().sum())
    for index, rung in enumerate(rungs, 1):
        alone, _ = probed(ladder, x, (index, index))
        own = float(energy_of(rung, x, (f"rung{index}",)))
        wanted = pytest.approx([whole, own, own], rel=1e-12, abs=1e-6 * whole)
        assert alone.tolist() == wanted
        energies, own_sent = probed(ladder, x, (1, index))
        rest = exact - own_sent.double()
        sent = whole - float(rest.square().sum())
        assert float(energies[2]) == pytest.approx(sent, rel=1e-6, abs=1e-6 * whole)


# Gains.

TENSORS = {
    "heavy-tailed": heavy_tailed(3001),
    "zeros": torch.zeros(100),
    "one value": torch.tensor([3.0]),
    "constant": torch.full((64,), 0.5),
    "one entry": torch.eye(1, 200).view(-1),
    "tiny": 1e-20 * gaussian(100, 1),
    "large": 1e15 * gaussian(100, 2),
    "squares beyond float32": torch.full((40,), 1e30),
    "signs": gaussian(500, 3).sign(),
}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_gain_is_finite_and_at_most_1_and_that_of_a_selection_is_a_share(method: Any) -> None:
    """The ratio of the paper, without a residual: no clipping makes it one."""
    assert isinstance(method, Measurable)
    unscaled = not (getattr(method, "unbiased", False) or getattr(method, "quantized", False))
    selects = isinstance(method, Sparsifier) and unscaled
    for name, tensor in TENSORS.items():
        whole, kept = select.energy(tensor), energy_of(method, tensor)
        assert not selects or 0 <= float(kept) <= float(whole) * (1 + 1e-12), name
        norm = kept.clamp(min=0).sqrt()
        # What `Choose` reports of a ladder of this one rung, norms included.
        found = torch.stack([whole, kept, kept, whole.sqrt(), norm, norm])
        assert bool(found.isfinite().all()), name
        for policy in (
            D.GraVAC(theta_max=10),
            D.GraVAC(theta_max=10, gain="norm"),
            Probed("factor", 10),
        ):
            last = policy.choose(policy.init(), found)[1]["last"]
            gains = [last[k] for k in ("gain", "gain_theta_min", "gain_candidate")]
            assert all(math.isfinite(gain) and gain <= 1 + 1e-6 for gain in gains), name
            assert not selects or min(gains) >= 0, name
