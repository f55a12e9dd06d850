"""Live ranks: what comes back, what a step is counted as, and that a failure has a name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from dgc_repro.bench.rounds import Steps, rounds
from dgc_repro.bench.world import RanksFailed, on_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _ranks_find_this_file(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent, repository))))


def fails(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "raises":
            raise KeyError("nobody")
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "rank 1 KeyError: 'nobody'"),
        ("is killed", "rank 1 was killed by SIGKILL"),
        ("is late", "rank 0 .*[Tt]imed out"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_reason(how: str, said: str) -> None:
    with pytest.raises(RanksFailed, match=said):
        on_ranks(fails, how, timeout_seconds=3 if how == "is late" else 30)


def one_each(seconds: Sequence[float]) -> Steps:
    number = dist.get_rank()
    return rounds({"way": lambda: {"seconds": seconds[number], "a_ms": seconds[number]}}, 2, 1)


def test_of_the_ranks_the_slowest_counts_and_spans_are_means() -> None:
    way = on_ranks(one_each, (1.0, 3.0))["way"]
    assert way.to_dict("list") == {"seconds": [3.0, 3.0], "a_ms": [2.0, 2.0]}
