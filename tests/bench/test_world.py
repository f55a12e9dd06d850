"""Live ranks: what comes back, what a step is counted as, and that a failure has a name."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dgc_repro.bench.network import OWN, as_record, opened
from dgc_repro.bench.record import MODELS, Recorded, record
from dgc_repro.bench.replay import Case, Compute
from dgc_repro.bench.rounds import Steps, rounds
from dgc_repro.bench.world import PAIR, RanksFailed, RanksLate, on_ranks
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import moved_by

pytestmark = pytest.mark.slow

SHAPES = {"a.weight": (60, 70), "a.bias": (60,), "b.weight": (50, 60)}
VALUES = 60 * 70 + 60 + 50 * 60
RECORDED = Recorded(Path(), "made up", PAIR, VALUES, len(SHAPES), 1, "noise", {"a": 1.0})
CASES = (
    Case("plain DDP"),
    Case("torch fp16", hook="fp16"),
    Case("torch powersgd", hook="powersgd"),
    *(Case("dense", Dense(), overlap) for overlap in (True, False)),
    *(Case("top-k", ErrorFeedback(TopK(0.01)), overlap) for overlap in (True, False)),
)
SLEEP = Compute.of("sleep", 0.06)


@pytest.fixture(autouse=True)
def _ranks_find_this_file(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent, repository))))


def step_all(compute: Compute) -> tuple[dict[str, Steps], list[int]]:
    """Two steps of every case, with how many exchanges and threads are alive while it is open and after."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    gradients = {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()}
    found, alive = {}, []
    for case in CASES:
        runner = opened(case, gradients, RECORDED)
        runner.model.compute = compute
        found[case.key] = rounds({OWN: runner.step}, 2)
        alive.append(kept())
        runner.close()
        del runner
        gc.collect()
        alive.append(kept())
    return found, alive


def kept() -> int:
    exchanges = sum(isinstance(found, GradientExchange) for found in gc.get_objects())
    return exchanges + sum(t.name == "gradient exchange" for t in threading.enumerate())


@pytest.fixture(scope="module")
def stepped(repository: Path) -> tuple[dict[str, Any], list[int]]:
    """The record of every case, and what was alive."""
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent, repository))))
        found, alive = on_ranks(step_all, SLEEP, timeout_seconds=30)
    return {name: as_record(steps) for name, steps in found.items()}, alive


def test_plain_ddp_hands_over_every_value_once(stepped: Any) -> None:
    found = stepped[0]["plain DDP"]
    assert found["payload_bytes"] == 4 * VALUES
    assert found["wire_bytes"] == 4 * VALUES * moved_by("allreduce", PAIR)
    assert found["calls"] == {"allreduce": 1.0}
    assert (len(found["seconds"]), found["beside_seconds"]) == (2, [])


@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_torchs_hooks_run_and_hand_over_less(stepped: Any, hook: str) -> None:
    found = stepped[0][f"torch {hook}"]
    assert 0 < found["payload_bytes"] <= 2 * VALUES


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_our_exchange_is_counted_by_the_ledger_and_timed_step_by_step(
    stepped: Any, overlap: str
) -> None:
    dense, sparse = (stepped[0][f"{name}, overlap={overlap}"] for name in ("dense", "top-k"))
    # Aligned parts make a buffer up to 16 bytes a tensor larger than its values.
    assert 4 * VALUES <= dense["payload_bytes"] <= 4 * VALUES + 16 * len(SHAPES)
    assert 0 < sparse["payload_bytes"] < dense["payload_bytes"] / 20
    for found in (dense, sparse):
        assert found["total_wire_bytes"] > found["wire_bytes"]  # the signals
        assert min(found["compress_ms"]) > 0
        assert min(found["communicate_ms"]) > 0
    # Dense: the buckets and the signals; top-k: a gather a bucket.
    assert set(dense["calls"]) == {"allreduce"}
    assert set(sparse["calls"]) == {"allreduce", "allgather"}


def test_compute_is_part_of_every_step(stepped: Any) -> None:
    assert all(min(found["seconds"]) >= SLEEP.seconds for found in stepped[0].values())


def test_a_case_that_is_closed_keeps_no_memory(stepped: Any) -> None:
    """Dozens of cases on one world of ranks: each that stayed would keep its residuals and buffers."""
    opened, closed = stepped[1][::2], stepped[1][1::2]
    assert opened == [0, 0, 0, 2, 1, 2, 1]  # an exchange, and a thread with overlap
    assert closed == [0] * len(CASES)


def fails(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "raises":
            raise KeyError("nobody")
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raises", RanksFailed, "rank 1 KeyError: 'nobody'"),
        ("is killed", RanksFailed, "rank 1 was killed by SIGKILL"),
        ("is late", RanksLate, "rank 0 .*[Tt]imed out"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_reason(
    how: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        on_ranks(fails, how, timeout_seconds=3 if how == "is late" else 30)
    assert type(caught.value) is kind


def one_each(seconds: Sequence[float]) -> Steps:
    number = dist.get_rank()
    return rounds({"way": lambda: {"seconds": seconds[number], "a_ms": seconds[number]}}, 2, 1)


def test_of_the_ranks_the_slowest_counts_and_spans_are_means() -> None:
    way = on_ranks(one_each, (1.0, 3.0))["way"]
    assert way.to_dict("list") == {"seconds": [3.0, 3.0], "a_ms": [2.0, 2.0]}


def test_each_worker_records_a_gradient_of_its_own_and_the_next_call_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["dataset=digits", "model.width=2", "train.batch_size=8"]
    recorded = record("resnet18", tmp_path, tiny, workers=2)
    assert "recording" in capsys.readouterr().out
    one, other = (recorded.gradients(rank) for rank in (0, 1))
    assert list(one) == list(other)
    assert sum(gradient.numel() for gradient in one.values()) == recorded.values
    assert all(not torch.equal(one[n], other[n]) for n in one if n.endswith("conv1.weight"))
    # A 3x3 convolution of 3 colours to 2 channels on 32x32 images, 8 of them.
    assert recorded.multiply_adds["conv1"] == 8 * 32 * 32 * 2 * 27
    assert record("resnet18", tmp_path, tiny, workers=2) == recorded
    assert "recording" not in capsys.readouterr().out


def test_a_model_that_is_not_recorded_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=", ".join(MODELS)):
        record("alexnet", Path("."))
