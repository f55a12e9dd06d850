"""A NaN or an infinity in a gradient: noticed, whatever the method makes of it, and survived."""

from __future__ import annotations

import pytest
import torch
from law_settings import SETTINGS
from law_settings.base import Setting
from laws import copied, simulation, tensors
from torch import Tensor


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("broken", [torch.nan, -torch.inf])
def test_it_is_noticed_before_anything_is_sent_and_the_step_can_be_discarded(
    setting: Setting, broken: float
) -> None:
    """A kernel may say that it has found a tensor finite, which saves a look at it: it must be true."""
    like = tensors(0, 0)
    exchange = simulation(setting, 2, like)

    def opened(worker: int, gradients: dict[str, Tensor]) -> None:
        exchange.open(worker, copied(gradients), setting.plan)

    opened(0, like)
    opened(1, tensors(1, 0))
    exchange.finish()
    assert not exchange.non_finite
    exchange.discard()
    for name, place in (("one", 0), ("mixed", 0), ("mixed", -1)):
        bad = copied(like)
        bad[name].view(-1)[place] = broken
        opened(0, like)
        opened(1, bad)
        assert exchange.non_finite == {1: name}
        exchange.finish()
        exchange.discard()
