"""Who did not come is found out from what ranks answer, when a collective has failed."""

from __future__ import annotations

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist

from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.wire import CollectiveFailed, RanksDisagree, asking
from dgc_repro.launch import hang_report
from dgc_repro.launch.hang_report import (
    NO_ANSWER,
    Answer,
    HangReport,
    broken_collective,
    line_of_main_thread,
    torch_message,
    verdict,
)

ASKED = "allreduce of gradient (40 bytes)"
HERE = Answer(7, ASKED)
PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] "
CLOSED = (
    f"{PAIR}Connection closed by peer [127.0.0.1]:9. This is typically caused by a crash. GLHF!"
)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([None], f"rank 1 did not come to the {ASKED} of step 7{NO_ANSWER}"),
        ([None, HERE, None], f"ranks 1, 3 did not come to the {ASKED} of step 7{NO_ANSWER}"),
        (
            [Answer(7, at="train/step.py:9 (forward)")],
            f"rank 1 did not come to the {ASKED} of step 7 in time: still at step 7, in "
            "train/step.py:9 (forward); raise",
        ),
        (
            [Answer(6, "barrier of a checkpoint")],
            f"rank 1 did not come to the {ASKED} of step 7: waiting for the barrier of a checkpoint of "
            "step 6 instead; exchange.check=true",
        ),
        ([Answer(7, error="ValueError: no")], "ValueError: no (rank 1, at step 7)"),
        # Who ended by itself is the reason why others are silent.
        (
            [None, Answer(0, error="ValueError: no")],
            "ValueError: no (rank 2, before the first step)",
        ),
        ([HERE], f"all ranks came to the {ASKED} of step 7 and it did not end"),
    ],
)
def test_the_line_names_who_did_not_come_where_and_which_key(
    others: list[Answer | None], says: str
) -> None:
    line = verdict(HERE, dict(enumerate([HERE, *others])), 5.0)
    assert line.startswith(says)
    assert "\n" not in line
    assert "launch.timeout_seconds=5" in line or "ValueError" in line


def test_what_breaks_off_inside_a_collective_says_which_one_it_was() -> None:
    clock = Clock(torch.device("cpu"))
    said = "gradient.*closed by peer"
    with pytest.raises(CollectiveFailed, match=said) as failed, asking(ASKED, clock):
        raise RuntimeError(CLOSED)
    assert broken_collective(failed.value) == ASKED
    assert clock.waits_for == ASKED  # and the rank is still there, should another ask
    with pytest.raises(RanksDisagree), asking(ASKED, clock):
        raise RanksDisagree("rank 1 is about to ask for")
    with asking("another", clock):
        assert clock.waits_for == "another"
    assert clock.waits_for == ""


def test_errors_of_torchs_own_collectives_are_told_from_a_ranks_own() -> None:
    assert broken_collective(dist.DistBackendError("x")) == ""
    assert broken_collective(RuntimeError(CLOSED)) == ""
    assert broken_collective(RuntimeError("Application timeout caused pair closure")) == ""
    assert broken_collective(RuntimeError("shape mismatch")) is None
    assert broken_collective(FileNotFoundError("/data/gloo/images.npy")) is None
    assert broken_collective(RuntimeError("no kernel of gloo for this type")) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("shape '[3]' is invalid for input of size 4"),
    ],
)
def test_an_error_of_this_ranks_own_inside_a_collective_keeps_its_name_and_text(
    error: RuntimeError, stores: list[dist.Store]
) -> None:
    clock = Clock(torch.device("cpu"))
    with pytest.raises(RuntimeError) as failed, asking(ASKED, clock):
        raise error
    assert failed.value is error
    call = HangReport(stores[0], 0, 1, 9.0)
    call.where = lambda: (7, ASKED)
    assert call.failed(error) == f"{type(error).__name__}: {error} (rank 0, at step 7)"


def test_a_failed_allocation_in_a_gather_is_no_broken_network() -> None:
    with pytest.raises(RuntimeError) as failed, asking(ASKED, Clock(torch.device("cpu"))):
        torch.empty(2**60, dtype=torch.uint8)
    assert not isinstance(failed.value, CollectiveFailed)
    assert broken_collective(failed.value) is None


def test_the_line_ends_with_what_torch_says_without_its_place(stores: list[dist.Store]) -> None:
    calls = [HangReport(store, rank, 2, 9.0) for rank, store in enumerate(stores[:2])]
    calls[0].where = calls[1].where = lambda: (7, ASKED)
    failed = CollectiveFailed(ASKED, RuntimeError(CLOSED))
    failed.__cause__ = RuntimeError(CLOSED)
    line = calls[0].failed(failed)
    assert line.startswith(f"all ranks came to the {ASKED} of step 7")
    assert line.endswith("; torch says: Connection closed by peer [127.0.0.1]:9")
    assert torch_message(RuntimeError("Application timeout caused pair closure")) == (
        "Application timeout caused pair closure"
    )
    assert torch_message(dist.DistBackendError("NCCL error\nand its trace")) == "NCCL error"


@pytest.fixture
def stores() -> list[dist.Store]:
    """One store, as three ranks see it."""
    wait = datetime.timedelta(seconds=20)
    first = dist.TCPStore("127.0.0.1", 0, None, True, wait, wait_for_workers=False)
    others = [
        dist.TCPStore("127.0.0.1", first.port, None, False, wait, wait_for_workers=False)
        for _ in range(2)
    ]
    return [dist.PrefixStore("run", store) for store in (first, *others)]


def broken() -> CollectiveFailed:
    return CollectiveFailed(ASKED, RuntimeError("Connection closed by peer"))


def test_a_rank_answers_while_its_main_thread_hangs(stores: list[dist.Store]) -> None:
    calls = [HangReport(store, rank, 2, 9.0) for rank, store in enumerate(stores[:2])]
    calls[0].where = lambda: (7, ASKED)
    calls[1].where = lambda: (7, "")  # computing, for ever: nobody calls anything of it
    begin = time.monotonic()
    line = calls[0].failed(broken())
    assert time.monotonic() - begin < hang_report.ANSWER_SECONDS
    assert line.startswith(f"rank 1 did not come to the {ASKED} of step 7 in time: still at step 7")


def test_a_rank_without_a_voice_is_named_after_a_short_wait(
    stores: list[dist.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_report, "ANSWER_SECONDS", 0.5)
    calls = [HangReport(store, rank, 3, 9.0) for rank, store in enumerate(stores[:2])]
    for call in calls:
        call.where = lambda: (7, ASKED)
    lines: list[str] = []
    threads = [
        threading.Thread(target=lambda c=call: lines.append(c.failed(broken()))) for call in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(lines)) == 1, "all survivors say the same"
    assert lines[0].startswith(f"rank 2 did not come to the {ASKED} of step 7{NO_ANSWER}")


def test_a_rank_that_fails_by_itself_is_the_reason_that_the_others_give(
    stores: list[dist.Store],
) -> None:
    calls = [HangReport(store, rank, 2, 9.0) for rank, store in enumerate(stores[:2])]
    calls[0].where = calls[1].where = lambda: (7, "")
    own = calls[1].failed(OSError(5, "Input/output\nerror"))
    assert own == "OSError: [Errno 5] Input/output error (rank 1, at step 7)"
    assert calls[0].failed(broken()) == own


def test_a_place_in_our_code_is_found_in_the_main_thread() -> None:
    def ask(found: list[str]) -> None:
        found.append(line_of_main_thread())

    class Slow(dict[int, Answer | None]):
        def items(self) -> object:  # type: ignore[override]
            thread = threading.Thread(target=ask, args=(found,))
            thread.start()
            thread.join()
            return super().items()

    found: list[str] = []
    verdict(HERE, Slow({0: HERE}), 5.0)
    assert found[0].startswith("launch/hang_report.py:")
    assert found[0].endswith("(verdict)") or found[0].endswith("(<dictcomp>)")
