"""Sparsifiers, alone and under wrappers."""

from __future__ import annotations

import math

from torch import Tensor

from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.sparseloco import SparseLoCo
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import EPS, FED_BACK, Asked, Setting, asks

_NO_RESIDUAL = {"conservation": "keeps no residual: what is not chosen is lost"}


def sparse_parts(n: int, k: int) -> tuple[tuple[int, int], ...]:
    """The parts of k of n entries (n < 2^31): header, words of the places, values. Written down from the
    docstring of kernel/sparse.py, for every sparsifier of this file."""
    places = min(k, math.ceil((k + (n - k) // 65535) / 2), math.ceil(n / 32))
    return ((1, 8), (places, 4), (k, 4))


@asks.register
def _(leaf: TopK, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    density = leaf.density or 1 / (leaf.factor or 100)
    k = min(n, max(1, round(n * density)))
    return (Asked("gather", sparse_parts(n, k)),)


_LADDER = Ladder((Dense(), TopK(0.5), TopK(factor=10), TopK(0.01)))
_PROBE = Plan(None, candidates=(1, 2))


def _sees_energies(energies: Tensor) -> int:
    """A chooser that needs its argument: the candidate where it keeps 60 % of the energy."""
    return 2 if float(energies[2]) > 0.6 * float(energies[0]) else 1


# Top-k, and ladders of it.
_TOPK = (
    *(Setting(f"topk-{d:g}", TopK(d), excuses=_NO_RESIDUAL) for d in (1.0, 0.25, 0.01)),
    Setting("ef-topk", ErrorFeedback(TopK(factor=20)), excuses=FED_BACK),
    Setting("ladder-topk", _LADDER, Plan(2, {"mixed": 3, "huge": 0}), excuses=_NO_RESIDUAL),
    Setting("ladder-topk-chooses", _LADDER, _PROBE, _sees_energies, _NO_RESIDUAL),
    Setting(
        "ef-ladder-topk-chooses",
        ErrorFeedback(PerLayer(_LADDER)),
        _PROBE,
        _sees_energies,
        FED_BACK,
    ),
)


SETTINGS: tuple[Setting, ...] = (*_TOPK,)


# Thresholds: what passes them differs between workers.


@asks.register(Threshold)
@asks.register(DGCSampled)
@asks.register(RedSync)
@asks.register(SIDCo)
def _(
    leaf: Threshold | DGCSampled | RedSync | SIDCo, tensor: Tensor, floats: float
) -> tuple[Asked, ...]:
    if isinstance(leaf, RedSync) and leaf.quantized:  # as they are set here: one entry a tensor
        return (Asked("ragged", ((1, 8), (min(1, tensor.numel()), 4), (1, 4))),)
    return (Asked("ragged", sparse_parts(tensor.numel(), int(floats))),)


SETTINGS += (
    *(
        Setting(name, method, excuses=_NO_RESIDUAL)
        for name, method in (
            ("threshold", Threshold(0.25)),
            ("threshold-fixed", Threshold(threshold=0.5)),
            ("dgc_sampled", DGCSampled(0.25)),
            ("redsync", RedSync(0.1, search_from=0)),
            ("redsync-trimmed", RedSync(0.1)),
            ("redsync-quantized", RedSync(1e-4, quantized=True)),
            ("sidco-exponential", SIDCo(0.05)),
            ("sidco-gamma", SIDCo(0.05, fit="gamma", stages=1)),
            ("sidco-pareto", SIDCo(0.05, fit="pareto")),
        )
    ),
    *(
        Setting(f"ef-{name}", ErrorFeedback(method), excuses=FED_BACK)
        for name, method in (
            ("threshold", Threshold(factor=20)),
            ("dgc_sampled", DGCSampled(factor=20)),
            ("redsync", RedSync(factor=20, search_from=0)),
            ("redsync-quantized", RedSync(1e-4, quantized=True)),
            ("sidco", SIDCo(factor=20, fit="gamma")),
        )
    ),
    *(
        Setting(
            f"ef-ladder-{type(rungs[0]).__name__}-chooses",
            ErrorFeedback(Ladder((Dense(), *rungs))),
            _PROBE,
            _sees_energies,
            FED_BACK,
        )
        for rungs in (
            (DGCSampled(factor=3), DGCSampled(factor=10)),
            (RedSync(factor=3, search_from=0), RedSync(factor=10, search_from=0)),
            (RedSync(1e-4, quantized=True), RedSync(2e-5, quantized=True)),
            (SIDCo(factor=3), SIDCo(factor=10)),
            (Threshold(threshold=0.1), Threshold(threshold=1.0)),
        )
    ),
)

# Chunks.


def packed(count: int, bits: int) -> int:
    """Bytes of codes: whole groups of codes that fill whole bytes."""
    codes = 8 // math.gcd(8, bits)
    return math.ceil(count / codes) * codes * bits // 8


@asks.register
def _(leaf: SparseLoCo, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    chunks = [leaf.chunk] * (n // leaf.chunk) + [n % leaf.chunk] * (n % leaf.chunk > 0)
    count = sum(min(c, max(1, round(c * leaf.density))) for c in chunks)
    places, codes = packed(count, math.ceil(math.log2(leaf.chunk))), packed(count, leaf.bits)
    return (Asked("gather", ((2**leaf.bits * (n > 0), 4), (places, 1), (codes, 1))),)


@asks.register
def _(leaf: DeMo, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    if n == 0:
        return (Asked("gather", ((0, 4), (0, 1))),)
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    sides = (max(d for d in range(1, leaf.chunk + 1) if m % d == 0) for m in (rows, n // rows))
    block = math.prod(sides)
    count = n // block * min(leaf.k, block)
    return (Asked("gather", ((count, 4), (packed(count, max(1, math.ceil(math.log2(block)))), 1))),)


IN_THE_NORM = {"contraction": "contracts in the norm, not value by value: its own test says so"}
_DECAYS = {"conservation": "the residual decays: test_the_residual_decays_as_in_the_paper"}

SETTINGS += (
    *(
        Setting(f"sparseloco-{m.density:g}-{m.chunk}-{m.bits}", m, excuses=_NO_RESIDUAL | IN_THE_NORM)
        for m in (SparseLoCo(0.1, 100, 3), SparseLoCo(1.0, 2048, 8))
    ),
    Setting("ef-sparseloco", ErrorFeedback(SparseLoCo(0.1)), excuses=FED_BACK),
    Setting(
        "ef-sparseloco-decays",
        ErrorFeedback(SparseLoCo(0.1, 64), decay=0.95),
        excuses=FED_BACK | _DECAYS,
    ),
    Setting(
        "ef-sparseloco-ladder-chooses",
        ErrorFeedback(Ladder((Dense(), SparseLoCo(0.5, 256), SparseLoCo(0.05, 256)))),
        _PROBE,
        _sees_energies,
        FED_BACK,
    ),
)  # fmt: skip


def _cosines(name: str, *arguments: object, **more: object) -> Setting:
    """A value is a sum of products that may cancel: of h w = 64^2 at most, each rounded about 8 times, of the
    tensor's largest value at most sqrt(h w) times."""
    return Setting(name, *arguments, cancelled=8 * 64 * EPS, **more)  # type: ignore[arg-type, misc]


_SIGNS = {
    "averaging": "the sign of the mean: test_demo.py, test_the_answer_is_the_sign_of_the_mean"
}
SETTINGS += (
    *(
        _cosines(f"demo-{m.k}-{m.chunk}", m, excuses=_NO_RESIDUAL | IN_THE_NORM)
        for m in (DeMo(3, 8, sign=False), DeMo(500, 33, sign=False))
    ),
    Setting("demo-sign", DeMo(4), excuses=_NO_RESIDUAL | IN_THE_NORM | _SIGNS),
    _cosines("ef-demo", ErrorFeedback(DeMo(4, sign=False)), excuses=FED_BACK),
    Setting(
        "ef-demo-sign", ErrorFeedback(DeMo(4), decay=0.999), excuses=FED_BACK | _DECAYS | _SIGNS
    ),
)
