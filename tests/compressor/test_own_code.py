"""What constructors say to an own loop: they name their arguments, and no key of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.topk import TopK
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.probed import Probed
from dgc_repro.policy.scheduled import Scheduled
from dgc_repro.policy.warmup import Warmup

WRONG: list[Callable[[], object]] = [
    lambda: TopK(density=2),
    lambda: TopK(values="fp8"),
    lambda: Sharded(TopK(values="fp16")),
    lambda: GTopK(TopK(values="fp16")),
    lambda: Sharded(PowerSGD(1)),
    lambda: Sharded(QSGD(7)),
    lambda: ErrorFeedback(QSGD(7)),
    lambda: BlockMomentum(QSGD(7)),
    lambda: Fixed("factor", (2, 4), rung=3),
    lambda: Fixed("factor"),
    lambda: Scheduled("factor", (2, 4), rungs=[[0, 3]]),
    lambda: Probed("factor"),
    lambda: GraVAC(ratio=4),
    lambda: GraVAC(ladder=(2, 4), theta_min=2),
    lambda: Warmup("density", ()),
]


@pytest.mark.parametrize("make", WRONG)
def test_a_constructor_names_no_key_of_the_command_line(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="^[a-z_]+: ") as refusal:
        make()
    assert not re.search(
        r"\b(compressor|exchange|policy|wrapper|train|wrap)[.=]", str(refusal.value)
    )
