"""Dense, uniform, and the wrappers around them."""

from __future__ import annotations

import math

from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.encoding import TENSOR_ROW
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.running_uniform import RunningUniform
from dgc_repro.compressor.uniform import ROUNDINGS, Uniform
from dgc_repro.kernel.codes import group
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import FED_BACK, Asked, Setting, asks


def packed(n: int, width: int, bits: int) -> int:
    """n b / 8 bytes of codes, filled up to whole groups a row of ``width``."""
    codes, size = group(bits)
    if width % codes:  # no row is whole groups: every row is filled up
        return math.ceil(n / width) * math.ceil(min(n, width) / codes) * size
    return (n // width) * width * bits // 8 + math.ceil(n % width / codes) * size


@asks.register
def _(leaf: Dense, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    return (Asked("mean", ((tensor.numel(), 4),)),)


@asks.register
def _(leaf: Uniform, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    """4 ceil(n / block) bytes of scales and n b / 8 of codes, filled up to whole groups a row.
    Independent of `CodeLayout` but for the size of a group."""
    n = tensor.numel()
    codes = packed(n, leaf.block or TENSOR_ROW, leaf.bits)
    assert n * leaf.bits <= 8 * codes
    scales = math.ceil(n / leaf.block) if leaf.block else min(n, 1)
    return (Asked("gather", ((scales, 4), (codes, 1))),)


@asks.register
def _(leaf: RunningUniform, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    return (Asked("gather", ((min(n, 1), 4), (packed(n, TENSOR_ROW, leaf.bits), 1))),)


_LOST = {"conservation": "keeps no residual: what is rounded away is lost"}


def _uniform(bits: int, rounding: str, block: int | None) -> Setting:
    excuses = dict(_LOST)
    if rounding == "stochastic":
        excuses["contraction"] = "unbiased instead: test_unbiased.py"
    return Setting(
        f"uniform-{bits}-{rounding}-{block}", Uniform(bits, rounding, block), excuses=excuses
    )


def _sees_energies(energies: Tensor) -> int:
    """A chooser that needs its argument: the strong rung where it keeps 90 % of the energy."""
    return 2 if float(energies[2]) > 0.9 * float(energies[0]) else 1


_PROBE = Plan(None, candidates=(1, 2))
_LADDER = Ladder((Dense(), Uniform(8), Uniform(4, "stochastic", 100)))
_NO_RESIDUAL = {
    **_LOST,
    "contraction": "its strong rung rounds stochastically",
}

SETTINGS: tuple[Setting, ...] = (
    Setting("dense", Dense()),
    *(  # every rounding meets every block
        _uniform(bits, list(ROUNDINGS)[(i + j) % len(ROUNDINGS)], (None, 7, 100, 2048)[j])
        for i, bits in enumerate((2, 3, 4, 6, 8, 12, 16))
        for j in (i % 4, (i + 2) % 4)
    ),
    Setting("running-uniform-8", RunningUniform(), excuses=_LOST),
    Setting("running-uniform-3", RunningUniform(3, "toward_zero"), excuses=_LOST),
    Setting("ef-running-uniform", ErrorFeedback(RunningUniform(4, "stochastic")), excuses=FED_BACK),
    Setting("ef-dense", ErrorFeedback(Dense())),
    *(
        Setting(f"ef-uniform-{u.bits}-{u.rounding}-{u.block}", ErrorFeedback(u), excuses=FED_BACK)
        for u in (
            Uniform(2), Uniform(4, "toward_zero", 7), Uniform(6, "stochastic", 100), Uniform(8, block=2048))
    ),
    *(
        Setting(f"ladder-rung{rung}", _LADDER, Plan(rung), excuses=_NO_RESIDUAL if rung else {})
        for rung in range(3)
    ),
    Setting("ladder-by-tensor", _LADDER, Plan(2, {"mixed": 0, "huge": 1}), excuses=_NO_RESIDUAL),
    Setting("ladder-chooses", _LADDER, _PROBE, _sees_energies, _NO_RESIDUAL),
    Setting("ef-ladder-chooses", ErrorFeedback(_LADDER), _PROBE, _sees_energies, FED_BACK),
    Setting("per-layer-uniform", PerLayer(Uniform(4), ("vectors", "huge")),
            excuses=_LOST),
    *(
        Setting(name, nest, plan, excuses=FED_BACK)
        for name, nest, plan in (
            ("ef-ladder-dense", ErrorFeedback(_LADDER), Plan(0)),
            ("ef-ladder-strong", ErrorFeedback(_LADDER), Plan(2)),
            ("ladder-of-ef", Ladder((Dense(), *(ErrorFeedback(Uniform(b)) for b in (8, 4)))),
             Plan(2, {"huge": 1})),
            ("per-layer-ef", PerLayer(ErrorFeedback(Uniform(4)), (), smaller_than=50), Plan(0)),
            ("ef-per-layer", ErrorFeedback(PerLayer(Uniform(4, "stochastic"))), Plan(0)),
            ("per-layer-ef-ladder", PerLayer(ErrorFeedback(_LADDER), ("mix*",)), Plan(2)),
            ("ef-per-layer-ladder", ErrorFeedback(PerLayer(_LADDER)), Plan(1, {"mixed": 2})),
        )
    ),
)  # fmt: skip
