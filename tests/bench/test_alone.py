"""One worker's exchange without the others hands over what it does among real ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dgc_repro.bench.alone import as_long_as, buckets, time_exchange
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan

WORKERS = 4


def gradients() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (40, 30), "b": (30,), "c": (8, 3, 3, 3)}
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    found["c"] = found["c"].contiguous(memory_format=torch.channels_last)
    return found


def handed_over(compressor: Compressor) -> dict[str, int]:
    """Payload bytes by collective of one worker among simulated ones that have the same gradients."""
    link = Link(SimulatedWire(WORKERS), Ledger(), Clock(torch.device("cpu")))
    exchange = GradientExchange(compressor, gradients(), link)
    for worker in range(WORKERS):
        own = {
            n: g.contiguous(memory_format=torch.contiguous_format) for n, g in gradients().items()
        }
        exchange.open(worker, own, Plan(0))
    exchange.finish()
    return link.ledger.payload_by_collective


@pytest.mark.parametrize(
    "compressor",
    [
        Dense(),
        ErrorFeedback(Uniform(4, block=64)),
        ErrorFeedback(TopK(density=0.05)),
        Threshold(density=0.05),
        ErrorFeedback(PowerSGD(2)),
        Sharded(Uniform(4, block=64)),
        Sharded(TopK(density=0.05)),
        GTopK(TopK(density=0.05)),
    ],
    ids=str,
)
def test_the_payload_is_that_of_a_worker_among_others(compressor: Compressor) -> None:
    (one,) = time_exchange(compressor, gradients(), WORKERS, repeats=1)
    found: dict[str, int] = {}
    for calls in (one.first, one.later):
        for collective, (_, size) in calls.items():
            found[collective] = found.get(collective, 0) + size
    assert found == handed_over(compressor)
    assert one.compress > 0
    assert one.decompress >= 0


@pytest.mark.parametrize("compressor", [TopK(density=0.05), Threshold(density=0.05)], ids=str)
def test_gathered_payloads_touch_different_places(
    compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of N copies of one payload has its k values, that of different ones nearly N k."""
    finish, filled = GradientExchange.finish, []

    def watched(self: GradientExchange, part: int = 0) -> dict[str, Tensor]:
        means = finish(self, part)
        filled.append(sum(int(mean.count_nonzero()) for mean in means.values()))
        return means

    monkeypatch.setattr(GradientExchange, "finish", watched)
    time_exchange(compressor, gradients(), WORKERS, repeats=1)
    total = sum(gradient.numel() for gradient in gradients().values())
    assert filled[-1] > 0.7 * WORKERS * 0.05 * total
    assert filled[0] < 0.4 * WORKERS * 0.05 * total  # before the others are known


def test_payloads_of_unequal_lengths_are_filled_up() -> None:
    own, other = torch.ones(4, dtype=torch.uint8), torch.full((2,), 7, dtype=torch.uint8)
    assert as_long_as(own, other).tolist() == [7, 7, 0, 0]
    assert as_long_as(other, own).tolist() == [1, 1]
    assert as_long_as(own, own) is own


def test_gradients_are_left_as_they_were() -> None:
    given = gradients()
    time_exchange(Dense(), given, 2, repeats=1)
    assert all(torch.equal(given[name], tensor) for name, tensor in gradients().items())


def test_parts_go_one_after_another() -> None:
    parts = [["c"], ["b", "a"]]
    first, second = time_exchange(Dense(), gradients(), 2, parts=parts, repeats=1)
    assert first.first == {"allreduce": (1, 4 * 8 * 27)}
    assert second.first == {"allreduce": (1, 4 * 1230)}


def test_two_rounds_are_told_apart() -> None:
    (one,) = time_exchange(PowerSGD(2), gradients(), 2, repeats=1)
    assert list(one.first) == ["allreduce"]
    assert list(one.later) == ["allreduce"]


def test_buckets_are_ddps() -> None:
    meta = {f"p{i}": torch.empty(600_000, device="meta") for i in range(12)}  # 2.4 MB each
    found = buckets(meta)
    assert found[0] == ["p11"]  # the first is closed at 1 MB
    assert [len(names) for names in found] == [1, 11]
    assert [name for names in found for name in names] == list(reversed(meta))
