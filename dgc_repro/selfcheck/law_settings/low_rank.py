"""Low rank, alone and under wrappers; random-k."""

from __future__ import annotations

import math

from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import EPS, FED_BACK, Asked, Setting, asks

# Low rank.


@asks.register
def _(leaf: PowerSGD, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n, r = tensor.numel(), leaf.rank
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    cols = n // rows if n else 0
    if tensor.dim() < 2 or r * (rows + cols) >= n:
        return (Asked("mean", ((n, 4),)),)
    return (Asked("mean", ((r * rows, 4),)), Asked("mean", ((r * cols, 4),)))


_PROJECTS = {
    "conservation": "keeps no residual: what lies outside the factors is lost",
    "contraction": "contracts the norm of the matrix, not each entry: test_powersgd.py",
}
_LOW_RANK_LADDER = Ladder((Dense(), PowerSGD(3), PowerSGD(1)))


def _low_rank(name: str, *arguments: object, **more: object) -> Setting:
    """Entries are sums of r products that may cancel, |sum| <= the norm of a column: of the largest
    entry at most sqrt(33) times (rows of the largest matrix here), rounded r + 5 times at most."""
    return Setting(name, *arguments, cancelled=12 * math.sqrt(33) * EPS, **more)  # type: ignore[arg-type, misc]


SETTINGS: tuple[Setting, ...] = (
    *(_low_rank(f"powersgd-{r}", PowerSGD(r), excuses=_PROJECTS) for r in (1, 2, 7)),
    _low_rank("ef-powersgd", ErrorFeedback(PowerSGD(2)), excuses=FED_BACK),
    *(
        _low_rank(
            f"ef-powersgd-ladder-{rung}",
            ErrorFeedback(_LOW_RANK_LADDER),
            Plan(rung, {"huge": 1}),
            excuses=FED_BACK,
        )
        for rung in (0, 2)
    ),
    _low_rank(
        "per-layer-powersgd", PerLayer(ErrorFeedback(PowerSGD(1)), ("huge",)), excuses=FED_BACK
    ),
)

# Dion.


@asks.register
def _(leaf: Dion, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    cols = n // rows if n else 0
    r = math.ceil(leaf.rank_fraction * min(rows, cols))
    if tensor.dim() < 2 or r * (rows + cols) >= n:
        return (Asked("mean", ((n, 4),)),)
    longer, shorter = max(rows, cols), min(rows, cols)
    return (Asked("mean", ((r * longer, 4),)), Asked("mean", ((r * shorter, 4),)))


_DIRECTS = {"averaging": "the answer is a direction: test_dion.py, test_six_steps_are_the_papers"}
_TURNED = 2.0**-12
"""Columns of P that are almost dependent are divided by what is left of them, which multiplies roundings."""

SETTINGS += (
    Setting("dion", Dion(0.25), excuses=_PROJECTS | _DIRECTS, cancelled=_TURNED),
    *(
        Setting(  # of "huge" the norm of 65 values is none in float32
            f"per-layer-dion-{method.rank_fraction:g}",
            PerLayer(ErrorFeedback(method), ("huge",)),
            excuses=FED_BACK | _DIRECTS,
            cancelled=_TURNED,
        )
        for method in (Dion(0.1, 0.9), Dion(0.8))
    ),
)

# Random-k.


@asks.register
def _(leaf: RandomK, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    k = min(n, max(1, round(n * (leaf.density or 1 / (leaf.factor or 100)))))
    key = () if leaf.shared else ((1, 8),)
    return (Asked("mean" if leaf.shared else "gather", (*key, (k, 4))),)


def _sees_energies(energies: Tensor) -> int:
    return 2 if float(energies[2]) > 0.2 * float(energies[0]) else 1


_LOSES = {"conservation": "keeps no residual: what is not chosen is lost"}
_RANDOM_LADDER = Ladder((Dense(), RandomK(0.5), RandomK(0.05)))
_OWN_LADDER = Ladder((Dense(), *(RandomK(d, shared=False) for d in (0.7, 0.05))))

SETTINGS += (
    *(
        Setting(f"randomk-{d:g}-{'shared' if shared else 'apart'}", RandomK(d, shared=shared), excuses=_LOSES)
        for d, shared in ((1.0, False), (0.25, True), (0.25, False), (0.01, True))
    ),
    *(
        Setting(
            f"randomk-unbiased-{'shared' if shared else 'apart'}",
            RandomK(factor=2, shared=shared, unbiased=True),
            excuses={**_LOSES, "contraction": "unbiased instead: test_unbiased.py"},
        )
        for shared in (True, False)
    ),
    Setting("ef-randomk", ErrorFeedback(RandomK(factor=20)), excuses=FED_BACK),
    Setting("ef-randomk-apart", ErrorFeedback(RandomK(0.1, shared=False)), excuses=FED_BACK),
    Setting(
        "ef-randomk-ladder-chooses",
        ErrorFeedback(_RANDOM_LADDER),
        Plan(None, candidates=(1, 2)),
        _sees_energies,
        FED_BACK,
    ),
    Setting(
        "ef-randomk-apart-ladder-chooses",
        ErrorFeedback(_OWN_LADDER),
        Plan(None, candidates=(1, 2)),
        _sees_energies,
        FED_BACK,
    ),
)  # fmt: skip
