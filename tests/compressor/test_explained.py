"""What `Choose` compares: ||x||^2 - ||x - C(x)||^2 of every method that can tell it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from quantizing import heavy_tailed
from torch import Tensor

from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.magnitude import Magnitude
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.requests import Mean
from dgc_repro.kernel import native
from dgc_repro.kernel.workspace import Workspace

METHODS = [
    Dense(), FP16(), BF16(), Uniform(bits=2), Uniform(bits=4, rounding="stochastic", block=64),
    QSGD(), QSGD(levels=1), Natural(), TernGrad(), TernGrad(clip=None), OneBit(), SignSGD(),
    EFSignSGD(), TopK(0.1), TopK(0.1, values="int8"), TopK(0.1, values="fp16"), Threshold(0.1, sample=1.0),
    RandomK(0.1), RandomK(0.1, unbiased=True), RandomK(0.1, shared=False), DGCSampled(0.1, sample=1.0),
    RedSync(0.1), RedSync(0.1, values="int8"), RedSync(0.1, quantized=True), SIDCo(0.1),
    Magnitude(0.1),
]  # fmt: skip


def context(path: tuple[str, ...]) -> Context:
    return Context("w", 0, 11, 0, 1, 0, (0, 0), Workspace(), path)


def sent(method: Any, x: Tensor) -> Tensor:
    """What a lone worker sends of x, with the random numbers that its energy was taken with."""
    running = method.exchange(x, method.init(x), context(("energy",)))
    asked = next(running)
    while isinstance(asked, Mean):
        if asked.tensor.numel() == x.numel() or isinstance(method, RandomK):
            break
        asked = running.send(asked.tensor.clone())
    if not isinstance(asked, Mean):
        return asked.payload.dense()  # type: ignore[no-any-return]
    with pytest.raises(StopIteration) as end:
        running.send(asked.tensor.clone())
    return end.value.value.own.dense()  # type: ignore[no-any-return]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_energy_is_what_sending_explains(
    method: Any, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if eager:
        monkeypatch.setattr(native, "library", lambda: None)
    x = heavy_tailed(size=5003)
    energy = method.energy(x, context(()))
    assert energy.dtype == torch.float64
    exact = x.double()
    whole = exact.square().sum()
    expected = whole - (exact - sent(method, x).double()).square().sum()
    assert abs(float(energy - expected)) <= 1e-6 * float(whole)


def test_noise_is_not_explained() -> None:
    """A quantizer without bias whose noise is larger than the tensor sends more than there was."""
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    whole = float(x.square().sum())
    assert float(QSGD(levels=1).energy(x, context(()))) < 0
    assert 0.99 * whole < float(QSGD().energy(x, context(()))) < whole
