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
from dgc_repro.compressor.ladder import Ladder
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
from dgc_repro.exchange.payload import Gathered
from dgc_repro.exchange.requests import Choose, Mean
from dgc_repro.kernel import native
from dgc_repro.kernel.workspace import Workspace

METHODS = [
    Dense(), FP16(), BF16(), Uniform(bits=2), Uniform(bits=4, rounding="stochastic", block=64),
    QSGD(), QSGD(levels=1), Natural(), TernGrad(), TernGrad(clip=None), OneBit(), SignSGD(),
    EFSignSGD(), TopK(0.1), TopK(0.1, values="int8"), TopK(0.1, values="fp16"), Threshold(0.1, sample=1.0),
    RandomK(0.1), RandomK(0.1, unbiased=True), RandomK(0.1, shared=False), DGCSampled(0.1, sample=1.0),
    *(RandomK(0.7, shared=shared, values=v) for shared in (True, False) for v in ("fp16", "int8")),
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


CODED = ("fp32", "fp16", "int8")
SPARSIFIERS: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {"values": v}) for kind in (TopK, Magnitude, DGCSampled, RedSync, SIDCo) for v in CODED),
    *((Threshold, {"sample": sample, "values": v}) for sample in (0.1, 1.0) for v in CODED),
    (RedSync, {"search_from": 0}), (RedSync, {"quantized": True}), (TopK, {"indices": "bitmap"}),
    *((SIDCo, {"fit": fit}) for fit in ("gamma", "pareto")), (DGCSampled, {"sample": 1.0}),
    *((RandomK, {"shared": shared, "values": v}) for shared in (True, False) for v in CODED),
    *((RandomK, {"shared": shared, "unbiased": True}) for shared in (True, False)),
]  # fmt: skip


def probed(ladder: Ladder, x: Tensor, candidates: tuple[int, int]) -> tuple[Any, Tensor]:
    """The exchange of a lone worker's ladder, and the energies it asks the policy with."""
    where = Context("w", 0, 11, 0, 1, None, candidates, Workspace())
    running = ladder.exchange(x, ladder.init(x), where)
    asked = next(running)
    assert isinstance(asked, Choose)
    return running, asked.energies


@pytest.mark.parametrize(("kind", "settings"), SPARSIFIERS, ids=str)
def test_a_ladder_tells_the_energy_of_what_it_then_sends(
    kind: Any, settings: dict[str, Any]
) -> None:
    """Of a rung that is measured alone, that is its own `energy`; of one that was chosen among a weaker
    one's survivors, of that choice. Energies below zero are larger than the tensor's."""
    x = heavy_tailed(size=9001)  # 3,000 and 900 entries: more than one scale, and one
    rungs = [kind(factor=factor, **settings) for factor in (3, 10)]
    ladder = Ladder((Dense(), *rungs))
    exact, whole = x.double(), float(x.double().square().sum())
    for index, rung in enumerate(rungs, 1):
        _, alone = probed(ladder, x, (index, index))
        own = float(rung.energy(x, context((f"rung{index}",))))
        wanted = pytest.approx([whole, own, own], rel=1e-12, abs=1e-6 * whole)
        assert alone.tolist() == wanted
        running, energies = probed(ladder, x, (1, 2))
        asked = running.send(index)
        answer = asked.tensor.clone() if isinstance(asked, Mean) else Gathered([asked.payload])
        with pytest.raises(StopIteration) as end:
            running.send(answer)
        rest = exact - end.value.value.own.dense().double()
        sent = whole - float(rest.square().sum())
        assert float(energies[index]) == pytest.approx(sent, rel=1e-6, abs=1e-6 * whole)


def test_noise_is_not_explained() -> None:
    """A quantizer without bias whose noise is larger than the tensor sends more than there was."""
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    whole = float(x.square().sum())
    assert float(QSGD(levels=1).energy(x, context(()))) < 0
    assert 0.99 * whole < float(QSGD().energy(x, context(()))) < whole
