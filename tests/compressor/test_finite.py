"""A NaN or an infinity in a gradient is noticed, whatever the method makes of it, and survived.

A kernel may report that it has read a whole tensor and found it finite, which saves a look at it: that must
be true, of the tensor itself or of a sum of which it is a part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws import copied, simulation, tensors
from numeric import context, heavy_tailed, needs_c
from torch import Tensor

from dgc_repro import (
    BF16,
    EDEN,
    FP16,
    QSGD,
    BlockFloat,
    BlockMomentum,
    DGCSampled,
    EFSignSGD,
    ErrorFeedback,
    MomentumCorrection,
    Natural,
    OneBit,
    RandomK,
    RedSync,
    SIDCo,
    SignSGD,
    TernGrad,
    Threshold,
    TopK,
    Uniform,
)
from dgc_repro.compressor.interface import exchange_all
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting

BROKEN = (torch.nan, -torch.nan, torch.inf, -torch.inf)
REPORTS = (
    *(FP16(), BF16(), Natural(), OneBit(), SignSGD(), EFSignSGD(), TernGrad(), TernGrad(None)),
    *(BlockFloat(), BlockFloat("nvfp4"), EDEN(1), EDEN(4, 64, rotations=2), EDEN(2, shared=True)),
    *(Uniform(8), Uniform(4, "stochastic", 100), QSGD(7, None), QSGD(7, 64, "max")),
    *(TopK(0.01), Threshold(0.01), Threshold(threshold=1e30), DGCSampled(0.01)),
    *(RedSync(0.01, search_from=0), RedSync(0.01), SIDCo(0.01), SIDCo(0.01, fit="gamma")),
    *(ErrorFeedback(TopK(0.01)), ErrorFeedback(Uniform(8)), BlockMomentum(Uniform(8))),
    *(BlockMomentum(TopK(0.01), momentum=0.0), MomentumCorrection(ErrorFeedback(TopK(0.01)))),
    MomentumCorrection(ErrorFeedback(Uniform(4)), nesterov=True, masking=False),
    MomentumCorrection(TopK(0.01), momentum=0.0, nesterov=True),
)


def reported(method: Any, x: Tensor, step: int = 0, state: Any = None) -> bool:
    """Whether x is known to be finite when it has been sent."""
    batch = Batch(("w",), [x])
    next(exchange_all(method, batch, [state or method.init(x)], context(step)))
    return not batch.unchecked


@needs_c
@pytest.mark.parametrize("method", REPORTS, ids=repr)
def test_a_tensor_is_called_finite_only_where_it_is(method: Any) -> None:
    for step, size in enumerate((1, 100, 4097, 50_000, 50_001)):
        x = heavy_tailed(size, step)
        assert reported(method, x, step), size
        for place in (0, size // 2, size - 1):
            for broken in BROKEN:
                bad = x.clone()
                bad[place] = broken
                assert not reported(method, bad, step), (size, place, broken)


def test_what_reads_a_part_or_one_sign_or_overflows_tells_nothing() -> None:
    x = heavy_tailed(50_000)
    assert not reported(RandomK(0.01), x)
    x[7] = -torch.inf
    assert not reported(RedSync(0.01, quantized=True), x)
    nest, huge = ErrorFeedback(TopK(0.01)), torch.full((100,), 3e38)
    assert not reported(nest, huge, state={**nest.init(huge), "residual": huge.clone()})


@needs_c
@pytest.mark.parametrize("size", [0, 1, 7, 4097, 100_000])
def test_the_kernels_look_at_every_place_and_scale_as_torch_does(size: int) -> None:
    def found_finite(x: torch.Tensor, weight: float, to: torch.Tensor) -> bool:
        batch = Batch(("x",), [x])
        kernels.scale(batch, weight, batch.like([to]))
        return not batch.unchecked

    def added(x: torch.Tensor, weight: float, to: torch.Tensor) -> torch.Tensor:
        batch, total = Batch(("x",), [x]), to.clone()
        kernels.add_scaled(batch, weight, batch.like([total]))
        assert not batch.unchecked
        return total

    x = heavy_tailed(size)
    for to in (torch.empty(size), x.clone()):
        assert found_finite(x, 1 / 3, to)
        assert torch.equal(to, x * torch.tensor(1 / 3))
    assert torch.equal(added(x, 1 / 3, x), x + x * torch.tensor(1 / 3))
    assert native.all_finite(x)
    for place in (0, size // 2, size - 1) if size else ():
        for broken in BROKEN:
            bad = x.clone()
            bad[place] = broken
            assert not native.all_finite(bad)
            assert not found_finite(bad, 0.5, torch.empty(size))


def test_tensors_are_told_apart_and_what_is_made_of_them_tells_of_them() -> None:
    batch = Batch(("a", "b", "c"), [torch.ones(3) for _ in range(3)])
    batch.part([1]).found_finite()
    assert batch.unchecked == {"a", "c"}
    batch.slices([0, 0, 0], [1, 1, 1]).found_finite()  # a stretch says nothing about the rest
    assert batch.unchecked == {"a", "c"}
    batch.like([torch.ones(3) for _ in range(3)]).found_finite()  # a sum of which they are a part
    assert not batch.unchecked


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_it_is_noticed_before_anything_is_sent_and_the_step_can_be_discarded(
    setting: Setting,
) -> None:
    ours, theirs = tensors(0, 0), tensors(1, 0)
    exchange = simulation(setting, 2, ours)

    def opened(gradients: dict[str, Tensor]) -> None:
        exchange.open(0, copied(ours), setting.plan)
        exchange.open(1, copied(gradients), setting.plan)

    opened(theirs)
    exchange.finish()
    assert not exchange.non_finite
    exchange.discard()
    for broken, name, place in (
        (torch.nan, "one", 0),
        (-torch.inf, "mixed", 0),
        (torch.nan, "mixed", -1),
    ):
        bad = copied(ours)
        bad[name].view(-1)[place] = broken
        opened(bad)
        assert exchange.non_finite == {1: name}
        exchange.finish()
        exchange.discard()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("compressor", [ErrorFeedback(Uniform(8)), TopK(0.1)], ids=repr)
def test_in_one_vector_of_all_the_broken_tensor_is_named(compressor: Any, broken: float) -> None:
    like = {"first": heavy_tailed(300), "second": heavy_tailed(200)}
    link = simulation(Setting("", compressor), 1, like).link
    exchange = GradientExchange(compressor, like, link, unit="model")
    exchange.open(0, copied(like), Plan(0))
    assert not exchange.non_finite
    exchange.finish()
    exchange.commit()
    bad = copied(like)
    bad["second"][3] = broken
    exchange.open(0, bad, Plan(0))
    assert exchange.non_finite == {0: "second"}
