"""Casts, quantizers and sign methods, alone and under wrappers."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.blockfloat import FORMATS, BlockFloat
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.eden import EDEN
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import EPS, FED_BACK, Asked, Setting, asks
from dgc_repro.selfcheck.law_settings.uniform import packed


@asks.register(FP16)
@asks.register(BF16)
def _(leaf: FP16 | BF16, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    return (Asked("mean", ((tensor.numel(), 2),)),)


@asks.register
def _(leaf: QSGD, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n, bits = tensor.numel(), math.ceil(math.log2(2 * leaf.levels + 1))
    norms = math.ceil(n / leaf.bucket) if leaf.bucket else min(n, 1)
    return (Asked("gather", ((norms, 4), (packed(n, leaf.bucket or 4096, bits), 1))),)


@asks.register
def _(leaf: TernGrad, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    codes = Asked("gather", ((min(n, 1), 4), (math.ceil(n / 4), 1)))
    return (Asked("max", ((min(n, 1), 4),)), codes) if leaf.shared_scale else (codes,)


@asks.register
def _(leaf: Natural, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    return (Asked("gather", ((math.ceil(n / 32), 4), (n, 1))),)


@asks.register
def _(leaf: BlockFloat, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n, name = tensor.numel(), leaf.format
    codes = {"8": n, "6": 3 * math.ceil(n / 4), "4": math.ceil(n / 2)}[name.lstrip("nvmxfp")[0]]
    tensor_scale, blocks = (min(n, 1), 4), (math.ceil(n / (16 if name == "nvfp4" else 32)), 1)
    if name.startswith("fp8"):
        return (Asked("gather", (tensor_scale, (codes, 1))),)
    before = (tensor_scale, blocks) if name == "nvfp4" else (blocks,)
    return (Asked("gather", (*before, (codes, 1))),)


@asks.register
def _(leaf: EDEN, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    """The last block is filled up to a power of two, 32 at least."""
    n, block = tensor.numel(), leaf.block
    entries = n - n % block + (max(32, 2 ** math.ceil(math.log2(n % block))) if n % block else 0)
    key = () if leaf.shared else ((min(n, 1), 4),)
    parts = ((math.ceil(n / block), 4), (entries * leaf.bits // 8, 1))
    return (Asked("gather", (*key, *parts)),)


@asks.register
def _(leaf: OneBit, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    columns = math.prod(tensor.shape[1:]) if n else 0
    return (Asked("gather", ((2 * columns, 4), (math.ceil(n / 32), 4))),)


@asks.register
def _(leaf: SignSGD, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    return (Asked("gather", ((math.ceil(tensor.numel() / 32), 4),)),)


@asks.register
def _(leaf: EFSignSGD, tensor: Tensor, floats: float) -> tuple[Asked, ...]:
    n = tensor.numel()
    return (Asked("gather", ((min(n, 1), 4), (math.ceil(n / 32), 4))),)


_LOST = {"conservation": "keeps no residual: what is rounded away is lost"}
_RANDOM = {**_LOST, "contraction": "unbiased instead: test_unbiased.py"}
_SIGNS = {**_LOST, "contraction": "contracts in the norm, not value by value: its own test says so"}
_IN_THE_NORM_ON_AVERAGE = {**_LOST, "contraction": "of the norm, on average: test_eden.py"}
_VOTE = {
    "averaging": "majority vote: the answer is the sign of the sum of signs, not their average",
    "conservation": "what is sent is a sign, in no unit of the gradient",
    "contraction": "what is sent is a sign, in no unit of the gradient",
}
_NATURAL = {
    **_LOST,
    "contraction": "below 2^-126 it rounds to 0 or 2^-126; unbiased: test_unbiased.py",
}


def _half(setting: Setting) -> Setting:
    """fp16: relative error 2^-11, smallest step 2^-24."""
    return replace(setting, eps=2.0**-11, smallest=2.0**-24)


def _brain(setting: Setting) -> Setting:
    """bf16: relative error 2^-8, smallest step 2^-133."""
    return replace(setting, eps=2.0**-8, smallest=2.0**-133)


def _rotated(one: EDEN, compressor: Compressor, excuses: dict[str, str]) -> Setting:
    """Where workers share a rotation it is their sum that is rotated back: it is rounded in each of 12 stages
    of a transform."""
    name = f"eden-{one.bits}-{one.block}-{one.scale}-{one.rotations}{'-together' * one.shared}"
    name = name if compressor is one else f"ef-{name}"
    return Setting(name, compressor, excuses=excuses, cancelled=64 * EPS * one.shared)


def _fed_back(name: str, compressor: Compressor) -> Setting:
    return Setting(f"ef-{name}", ErrorFeedback(compressor), excuses=FED_BACK)


_QSGD = (
    QSGD(1, None), QSGD(1, 64, "max"), QSGD(3, 7), QSGD(127), QSGD(32767, None, "max"), QSGD(16, 33),
)  # fmt: skip
_FLOATS = tuple(
    BlockFloat(name, rounding)
    for i, name in enumerate(FORMATS)
    for rounding in (("nearest",), ("nearest", "stochastic"))[i % 2]
)
_EDEN = (
    EDEN(1), EDEN(2, 64, rotations=2), EDEN(3, 32, "least_error"), EDEN(4, 1024), EDEN(3, shared=True),
    EDEN(1, 256, rotations=2, shared=True),
)  # fmt: skip
_TERNARY = (TernGrad(), TernGrad(None), TernGrad(shared_scale=True), TernGrad(None, True))

SETTINGS: tuple[Setting, ...] = (
    _half(Setting("fp16", FP16(), excuses=_LOST)),
    _half(_fed_back("fp16", FP16())),
    _brain(Setting("bf16", BF16(), excuses=_LOST)),
    _brain(_fed_back("bf16", BF16())),
    *(Setting(f"qsgd-{one.levels}-{one.bucket}-{one.norm}", one, excuses=_RANDOM) for one in _QSGD),
    _fed_back("qsgd-max", QSGD(7, 512, "max")),
    _fed_back("qsgd-two", QSGD(127)),
    *(
        Setting(
            f"{one.format}-{one.rounding}",
            one,
            excuses=_RANDOM if one.rounding == "stochastic" else _LOST,
        )
        for one in _FLOATS
    ),
    *(_fed_back(f"{one.format}-{one.rounding}", one) for one in _FLOATS),
    *(_rotated(one, one, _IN_THE_NORM_ON_AVERAGE) for one in _EDEN),
    *(_rotated(one, ErrorFeedback(one), FED_BACK) for one in _EDEN),
    Setting("natural", Natural(), excuses=_NATURAL),
    _fed_back("natural", Natural()),
    *(Setting(f"terngrad-{one.clip}-{one.shared_scale}", one, excuses=_RANDOM) for one in _TERNARY),
    _fed_back("terngrad", TernGrad()),
    _fed_back("terngrad-shared", TernGrad(shared_scale=True)),
    Setting("onebit", OneBit(), excuses=_SIGNS),
    _fed_back("onebit", OneBit()),
    Setting("signsgd", SignSGD(), excuses=_VOTE),
    Setting("ef_signsgd", EFSignSGD(), excuses=_SIGNS),
    _fed_back("ef_signsgd", EFSignSGD()),
    Setting(
        "ladder-of-casts-and-signs",
        ErrorFeedback(Ladder((Dense(), FP16(), Natural(), OneBit()))),
        Plan(3, {"mixed": 2, "tiny": 0}),
        excuses=FED_BACK,
    ),
    Setting("per-layer-onebit", ErrorFeedback(PerLayer(OneBit())), excuses=FED_BACK),
)
