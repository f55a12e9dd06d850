"""Two ranks that replay: what comes back, what is counted, and that a failure has a name."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dgc_repro.bench.ranks import Ranks, RanksFailed, RanksLate
from dgc_repro.bench.record import MODELS, Recorded, record
from dgc_repro.bench.replay import Case, Compute
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.ledger import moved_by

pytestmark = pytest.mark.slow

SHAPES = {"a.weight": (60, 70), "a.bias": (60,), "b.weight": (50, 60)}
VALUES = 60 * 70 + 60 + 50 * 60
WORKERS = 2
PLAIN = Case("plain DDP")


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("gradients")
    for worker in range(WORKERS):
        generator = torch.Generator().manual_seed(worker)
        made = {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()}
        torch.save(made, folder / f"worker-{worker}.pt")
    return Recorded(folder, "made up", WORKERS, VALUES, len(SHAPES), 1, "noise", {"a": 1.0})


@pytest.fixture(scope="module")
def ranks(gradients: Recorded) -> Iterator[Ranks]:
    with Ranks(WORKERS, timeout_seconds=30) as started:
        assert started.load(gradients) == VALUES
        started.open(PLAIN)
        yield started


def test_plain_ddp_hands_over_every_value_once(ranks: Ranks) -> None:
    found = ranks.steps(PLAIN, repeats=3)
    assert found.payload_bytes == 4 * VALUES
    assert found.wire_bytes == 4 * VALUES * moved_by("allreduce", WORKERS)
    assert found.calls == {"allreduce": 1.0}
    assert (len(found.seconds), found.beside_seconds) == (3, [])


@pytest.mark.parametrize(("hook", "at_most"), [("fp16", 2 * VALUES), ("powersgd", 2 * VALUES)])
def test_torchs_hooks_run_and_hand_over_less(ranks: Ranks, hook: str, at_most: int) -> None:
    case = Case(f"torch {hook}", hook=hook)
    ranks.open(case)
    found = ranks.steps(case, repeats=2)
    ranks.close_case(case)
    assert 0 < found.payload_bytes <= at_most
    assert min(found.seconds) > 0


@pytest.mark.parametrize("junction", ["after_backward", "per_bucket"])
def test_our_exchange_is_counted_by_the_ledger_and_timed_step_by_step(
    ranks: Ranks, junction: str
) -> None:
    dense = Case("dense", Dense(), junction)
    sparse = Case("top-k", ErrorFeedback(TopK(0.01)), junction)
    found = {}
    for case in (dense, sparse):
        ranks.open(case)
        found[case.name] = ranks.steps(case, repeats=2, settle=1, beside=PLAIN)
        ranks.close_case(case)
    # Aligned parts make a buffer up to 16 bytes a tensor larger than what is in it.
    assert 4 * VALUES <= found["dense"].payload_bytes <= 4 * VALUES + 16 * len(SHAPES)
    assert 0 < found["top-k"].payload_bytes < found["dense"].payload_bytes / 20
    for measured in found.values():
        assert measured.total_wire_bytes > measured.wire_bytes  # the signals
        assert len(measured.beside_seconds) == len(measured.seconds) == 2
        assert min(measured.compress_ms) > 0
        assert min(measured.communicate_ms) > 0
    # Dense: the buckets and the signals; top-k: a gather a bucket.
    assert set(found["dense"].calls) == {"allreduce"}
    assert set(found["top-k"].calls) == {"allreduce", "allgather"}


@pytest.mark.parametrize("junction", ["after_backward", "per_bucket"])
def test_a_case_that_is_closed_keeps_no_memory(ranks: Ranks, junction: str) -> None:
    """Dozens of cases on one world of ranks: each that stayed would keep its residuals and buffers."""
    alive = "sum(type(o).__name__ == 'GradientExchange' for o in __import__('gc').get_objects())"
    threads = "[t.name for t in __import__('threading').enumerate()].count('gradient exchange')"
    case = Case("top-k", ErrorFeedback(TopK(0.01)), junction)
    for _ in range(2):
        ranks.open(case)
        assert ranks.ask("call", eval, alive) == [1] * WORKERS
        ranks.close_case(case)
        assert ranks.ask("call", eval, alive) == [0] * WORKERS
        assert ranks.ask("call", eval, threads) == [0] * WORKERS


def test_compute_is_part_of_a_step_of_both_cases(ranks: Ranks) -> None:
    case = Case("dense", Dense(), "per_bucket")
    ranks.open(case)
    found = ranks.steps(case, Compute.of("sleep", 0.06), repeats=2, beside=PLAIN)
    ranks.close_case(case)
    assert min(found.seconds + found.beside_seconds) >= 0.06


def test_a_rank_that_raises_is_named_with_its_reason(gradients: Recorded) -> None:
    with Ranks(WORKERS, timeout_seconds=20) as ranks:
        with pytest.raises(RanksFailed, match=r"rank [01] KeyError: 'nobody'"):
            ranks.steps(Case("nobody"), repeats=1, seconds=20)
        assert ranks._processes == []


def test_a_rank_that_is_killed_is_named(gradients: Recorded) -> None:
    with Ranks(WORKERS, timeout_seconds=20) as ranks:
        ranks.load(gradients)
        ranks._processes[1].send_signal(signal.SIGKILL)
        with pytest.raises(RanksFailed, match="rank 1 died") as caught:
            ranks.open(PLAIN)
        assert not isinstance(caught.value, RanksLate)


def test_ranks_that_only_take_too_long_are_late(gradients: Recorded) -> None:
    with Ranks(WORKERS, timeout_seconds=20) as ranks:
        with pytest.raises(RanksLate, match="rank 0 did not answer within 0 s"):
            ranks.ask("call", time.sleep, 30.0, seconds=0.2)
        assert ranks._processes == []


def test_each_worker_records_a_gradient_of_its_own_and_the_next_call_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["dataset=digits", "model.width=2", "train.batch_size=8"]
    recorded = record("resnet18", tmp_path, tiny, workers=2)
    assert "recording" in capsys.readouterr().out
    one, other = (torch.load(recorded.folder / f"worker-{rank}.pt") for rank in (0, 1))
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
