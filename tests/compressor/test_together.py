"""A batch gives what its tensors give one by one: the same bits, states and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from laws import play, same, same_bits, simulation, tensors
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.payload.requests import Exchange
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting


@dataclass
class OneByOne:
    """A nest whose exchange never sees more than one tensor."""

    inner: Any

    def init(self, tensor: Tensor) -> State:
        state: State = self.inner.init(tensor)
        return state

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from self.inner.exchange(tensor, state, context))


def played(
    setting: Setting, compressor: Compressor, workers: int
) -> tuple[list[dict[str, Tensor]], GradientExchange]:
    exchange = simulation(setting, workers, tensors(0, 0), compressor)
    steps = [[tensors(worker, step) for worker in range(workers)] for step in range(3)]
    return [play(exchange, setting, gradients) for gradients in steps], exchange


@pytest.mark.parametrize("index", range(len(SETTINGS)), ids=[str(one) for one in SETTINGS])
def test_a_batch_gives_what_its_tensors_give_one_by_one(index: int) -> None:
    """One worker, whose means may be computed in place, and three in turn."""
    setting, workers = SETTINGS[index], (1, 3)[index % 2]
    means, batched = played(setting, setting.compressor, workers)
    expected, alone = played(setting, OneByOne(setting.compressor), workers)
    for step, (ours, theirs) in enumerate(zip(means, expected, strict=True)):
        for name, mean in ours.items():
            assert same_bits(mean, theirs[name]), f"step {step}, tensor {name}"
    assert same(batched.states, alone.states)
    assert batched.link.ledger == alone.link.ledger
    assert batched.non_finite == alone.non_finite
