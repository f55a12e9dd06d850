"""Quantizers, block floats and signs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from authors.case import (
    Answers,
    Given,
    case,
    checkout,
    drawn,
    gradients,
    values,
)
from dgc_repro.compressor.blockfloat import BlockFloat
from dgc_repro.compressor.eden import DRIVE, EDEN
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.kernel import counter, rotate

EDEN_CODE = "amitport/EDEN-Distributed-Mean-Estimation"
MICROXCALING = "microsoft/microxcaling"
GRACE = "sands-lab/grace"
EF_CODE = "epfml/error-feedback-SGD"
BLOCKS = {
    "two blocks": (2, 4096),
    "a block and more": (4096 + 1000,),
    "matrix": (64, 8),
    "short": (40,),
}
BLOCK = 4096
ODD = {"matrix": (48, 37), "vector": (1001,), "one": (1,)}
MEANS = "means of {} workers"


def of_workers(given: Given, one: Callable[[int, int, str, Tensor], Tensor]) -> Answers:
    """The mean over workers of what each is decoded as, tensor by tensor. ``one``: of step, worker, name and
    gradient."""
    found = []
    for step, every in enumerate(given):
        for name in every[0]:
            decoded = [one(step, w, name, own[name].clone()) for w, own in enumerate(every)]
            found.append(torch.stack(decoded).mean(0))
    return found


# ---- EDEN and DRIVE


def signs(key: int, size: int, start: int) -> Tensor:
    """The signs that this side's rotation of the block from value ``start`` on begins with: f32[size]."""
    row, first = torch.ones(1, size), torch.tensor([start // rotate.SHORTEST], dtype=torch.int32)
    rotate._flip(row, torch.tensor([key], dtype=torch.int32), first, 0)
    return row[0]


def _eden(compressor: EDEN) -> Callable[[Path, Given], Answers]:
    def theirs(folder: Path, given: Given) -> Answers:
        keys = drawn(compressor, given)
        with checkout(folder / "torch") as load:
            base, hadamard, eden = load("base"), load("hadamard"), load("eden")

            class Rotation(base.Transform):  # type: ignore[misc, name-defined]
                """The authors' RandomizedHadamard with the signs of this side."""

                def __init__(self, own: Tensor) -> None:
                    self.own = own

                def forward(self, x: Tensor) -> Any:
                    return hadamard.hadamard_transform_(x * self.own), None

                def backward(self, tx: Tensor, context: Any) -> Any:
                    return hadamard.hadamard_transform_(tx) * self.own, None

            def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
                parts = []
                for start, block in enumerate(x.view(-1).split(BLOCK)):
                    size = max(rotate.SHORTEST, 1 << (block.numel() - 1).bit_length())
                    rotation = Rotation(signs(keys[step][worker][name], size, BLOCK * start))
                    quantizer = eden.EdenQuantization(compressor.bits)
                    pipeline = base.CompressionPipeline(
                        [eden.flatten, hadamard.padToPowerOf2, rotation, quantizer]
                    )
                    parts.append(pipeline.backward(*pipeline.forward(block.clone()))[0])
                return torch.cat(parts).view(x.shape)

            return of_workers(given, one)

    return theirs


for _bits, _method in ((1, "drive"), (2, "eden"), (3, "eden"), (4, "eden")):
    _compressor = EDEN(_bits) if _bits > 1 else DRIVE()
    case(
        _method,
        f"{_bits} bit{'s' * (_bits > 1)}, blocks of 4096",
        EDEN_CODE,
        compressor=_compressor,
        given=gradients(BLOCKS, steps=2, workers=2),
        injected="the random signs of the rotation",
        note="The authors rotate a whole model; here each block of this side goes through their code.",
        compared=MEANS.format(2),
        name="drive" if _bits == 1 else f"eden_{_bits}",
    )(_eden(_compressor))


# ---- MX formats

MX = {
    "mxfp8": "fp8_e4m3",
    "mxfp8_e5m2": "fp8_e5m2",
    "mxfp6": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "fp4_e2m1",
}


def _extremes() -> Given:
    """Values of all magnitudes, ties between codes, zeros, and values that have no full exponent."""
    plain = values(1, 32 * 65)
    ties = torch.from_numpy(np.random.Generator(np.random.PCG64(2)).integers(-32, 33, 2048)) / 8
    return [
        [
            {
                "plain": plain,
                "spread": values(3, 32 * 65, spread=12),
                "tiny": plain * 2.0**-120,
                "subnormal": plain * 2.0**-136,
                "huge": plain * 2.0**122,
                "ties": ties.float(),
                "zeros": torch.zeros(96),
                "half zeros": torch.cat([torch.zeros(64), plain[:64]]),
            }
        ]
    ]


def _mx(element: str) -> Callable[[Path, Given], Answers]:
    def theirs(folder: Path, given: Given) -> Answers:
        with checkout(folder) as load:
            quantize = load("mx.mx_ops")._quantize_mx
            how = {"shared_exp_method": "max", "axes": [0], "block_size": 32, "round": "even"}
            return of_workers(given, lambda step, worker, name, x: quantize(x, 8, element, **how))

    return theirs


for _format, _element in MX.items():
    case(
        "blockfloat",
        f"format={_format}",
        MICROXCALING,
        compressor=BlockFloat(_format),
        given=_extremes(),
        compared="equal values of 8 tensors",
        bound=0.0,
        name=_format,
    )(_mx(_element))


# ---- Random rounding


def uniforms(key: int, size: int) -> Tensor:
    """The random numbers in (0, 1) that this side rounds a tensor with: f32[size]."""
    return counter.uniform(
        torch.arange(size, dtype=torch.int32), torch.tensor(key, dtype=torch.int32)
    )


def _random_rounding(
    module: str, build: Callable[[Any], Any], compressor: Any
) -> Callable[[Path, Given], Answers]:
    """A quantizer of GRACE, which draws with ``Tensor.uniform_``."""

    def theirs(folder: Path, given: Given) -> Answers:
        keys = drawn(compressor, given)
        with checkout(folder) as load:
            quantizer = build(load(f"grace_dl.dist.compressor.{module}"))

            def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
                def uniform_(drawn: Tensor, *_: Any) -> Tensor:
                    own = uniforms(keys[step][worker][name], drawn.numel())
                    # They round the magnitude up where theirs is below its fraction, this side the value.
                    return drawn.copy_(torch.where(x.view(-1) < 0, 1 - own, own))

                with patch.object(torch.Tensor, "uniform_", uniform_):
                    sent, context = quantizer.compress(x, name)
                decoded: Tensor = quantizer.decompress(sent, context)
                return decoded

            return of_workers(given, one)

    return theirs


_QSGD = QSGD(7, 128, "two")
case(
    "qsgd",
    "7 levels, buckets of 128, the 2-norm",
    GRACE,
    whose="GRACE's",
    compressor=_QSGD,
    given=gradients(ODD, steps=3, workers=2),
    injected="the random numbers of the rounding",
    compared=MEANS.format(2),
    name="qsgd",
)(_random_rounding("qsgd", lambda module: module.QSGDCompressor(7, 128), _QSGD))


def _centred(given: Given) -> Given:
    """Each value with its negative: of mean 0."""
    return [
        [{name: torch.cat([one.view(-1), -one.view(-1)]) for name, one in own.items()} for own in e]
        for e in given
    ]


_TERNGRAD = TernGrad()
case(
    "terngrad",
    "clip=2.5",
    GRACE,
    whose="GRACE's",
    compressor=_TERNGRAD,
    given=_centred(gradients(ODD, steps=3, workers=2)),
    injected="the random numbers of the rounding",
    compared=MEANS.format(2),
    note="Tensors of mean 0: the others' deviation is about the mean, this side's about 0.",
    name="terngrad",
)(_random_rounding("terngrad", lambda module: module.TernGradCompressor(), _TERNGRAD))


class Int32(np.int32):
    """An int32 from 32 bits without a sign, which CuPy takes."""

    def __new__(cls, bits: int) -> Any:
        return np.array(bits & 0xFFFFFFFF, dtype=np.uint32).view(np.int32)[()]


class Cupy(np.ndarray):
    """What GRACE asks of a CuPy array, by NumPy."""

    def toDlpack(self) -> np.ndarray:
        return self


@case(
    "natural",
    "natural compression",
    GRACE,
    whose="GRACE's",
    compressor=Natural(),
    given=gradients(ODD, steps=3, workers=2),
    injected="the random numbers of the rounding",
    compared=MEANS.format(2),
    bound=0.0,
    note="NumPy stands in for CuPy. Values within the range of GRACE's exponents, 2^-109 to 2^17.",
)
def natural(folder: Path, given: Given) -> Answers:
    """GRACE's NaturalCompressor."""
    keys = drawn(Natural(), given)

    def array(function: Callable[..., Any]) -> Callable[..., Cupy]:
        return lambda *a, **k: np.asarray(function(*a, **k)).view(Cupy)

    names = ("where", "clip", "right_shift", "left_shift", "bitwise_or", "bitwise_and", "multiply")
    cupy = {name: array(getattr(np, name)) for name in names}
    cupy |= {"int32": Int32, "float32": np.float32, "uint8": np.uint8}
    cupy["fromDlpack"] = lambda one: one.numpy().copy().view(Cupy)
    stubs = {"cupy": cupy, "torch.utils.dlpack": {"to_dlpack": lambda x: x, "from_dlpack": _tensor}}
    with checkout(folder, stubs=stubs) as load:
        quantizer = load("grace_dl.dist.compressor.natural").NaturalCompressor()

        def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
            index = torch.arange(x.numel(), dtype=torch.int32)
            key = torch.tensor(keys[step][worker][name], dtype=torch.int32)
            hashed = (counter.bits(index, key) >> 9) & 0x7FFFFF
            # They carry where the mantissa is above the number, this side where the sum overflows.
            above = (0x7FFFFF - hashed).numpy().view(Cupy)
            import cupy as stub

            stub.random = type("random", (), {"randint": staticmethod(lambda **_: above)})
            decoded: Tensor = quantizer.decompress(*quantizer.compress(x, name))
            return decoded

        return of_workers(given, one)


def _tensor(one: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(one).view(np.ndarray))


# ---- Signs


@case(
    "onebit",
    "error feedback",
    GRACE,
    whose="GRACE's",
    compressor=ErrorFeedback(OneBit()),
    given=gradients({"vector": (1001,), "short": (33,)}, steps=6, workers=2),
    injected="nothing; the mask of signs is handed to GRACE's decoder as bool",
    compared=MEANS.format(2),
    note="Vectors: GRACE has no columns. Its decoder turns ~mask of uint8 into 254 and 255.",
)
def onebit(folder: Path, given: Given) -> Answers:
    """GRACE's OneBitCompressor with its memory."""
    with checkout(folder) as load:
        quantizer = load("grace_dl.dist.compressor.onebit").OneBitCompressor()
        decode = quantizer.decompress
        quantizer.decompress = lambda sent, shape: decode((sent[0].bool(), *sent[1:]), shape)
        return with_memory(load, quantizer, given)


def with_memory(load: Callable[[str], Any], quantizer: Any, given: Given) -> Answers:
    """A compressor of GRACE with its memory of residuals, one for each worker."""
    memories = [load("grace_dl.dist.memory.residual").ResidualMemory() for _ in given[0]]

    def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
        memory = memories[worker]
        tensor = memory.compensate(x, name)
        sent, context = quantizer.compress(tensor, name)
        memory.update(tensor, name, quantizer, sent, context)
        decoded: Tensor = quantizer.decompress(sent, context)
        return decoded

    return of_workers(given, one)


@case(
    "signsgd",
    "majority vote of 3 workers",
    GRACE,
    whose="GRACE's",
    compressor=SignSGD(),
    given=gradients(ODD, steps=3, workers=3),
    compared="signs of the vote, equal values",
    bound=0.0,
    note="An odd number of workers and no zeros: GRACE counts a tie and a zero as positive.",
)
def signsgd(folder: Path, given: Given) -> Answers:
    """GRACE's SignSGDCompressor and its vote."""
    with checkout(folder) as load:
        quantizer = load("grace_dl.dist.compressor.signsgd").SignSGDCompressor()
        found = []
        for every in given:
            for name in every[0]:
                decoded = [quantizer.decompress(*quantizer.compress(g[name], name)) for g in every]
                found.append(quantizer.aggregate(decoded))
        return found


@case(
    "ef_signsgd",
    "error feedback, 1 worker",
    EF_CODE,
    compressor=ErrorFeedback(EFSignSGD()),
    given=gradients(ODD, steps=8, workers=1),
    compared="steps of the weights",
    injected="nothing; a learning rate of 1",
)
def ef_signsgd(folder: Path, given: Given) -> Answers:
    """Their ErrorFeedbackSGD with scaled_sign."""
    # torch's optimizers had a marker for what must be given.
    old = importlib.import_module("torch.optim.optimizer")
    marker = patch.object(old, "required", object(), create=True)
    with checkout(folder / "optimizers") as load, marker:
        theirs = load("ErrorFeedbackSGD")
        weights = {
            name: torch.nn.Parameter(torch.zeros_like(one)) for name, one in given[0][0].items()
        }
        optimizer = theirs.ErrorFeedbackSGD(
            weights.values(), lr=1.0, comp=theirs.scaled_sign, memory=True
        )
        found = []
        for (own,) in given:
            before = {name: weight.detach().clone() for name, weight in weights.items()}
            for name, weight in weights.items():
                weight.grad = own[name].clone()
            optimizer.step()
            found += [before[name] - weight.detach() for name, weight in weights.items()]
        return found
