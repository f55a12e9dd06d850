"""Ranks that do not meet, differ, or hang: one line with the ranks, the step, and the values that differ."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from commands import by_rank, on_both, wait_for
from sockets import listening, open_to_others
from tiny_run import configured

from dgc_repro.dataset.images import Images, Splits
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.collective import CollectiveFailed, asking
from dgc_repro.launch import rendezvous, torchrun, worker
from dgc_repro.launch.devices import Place
from dgc_repro.launch.ranks import LOCK_FILE, USER_ERROR
from dgc_repro.launch.rendezvous import (
    CLOCK_SECONDS,
    NO_ANSWER,
    Rendezvous,
    code_hash,
    data_hash,
    failed_collective,
    hosted_store,
    use_loopback,
)

# -- ranks that do not meet ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "host", "says"),
    [
        (0, "127.0.0.1", r"MASTER_ADDR, MASTER_PORT: rank 0 cannot listen at .*already in use"),
        (0, "192.0.2.1", r"MASTER_ADDR, MASTER_PORT: rank 0 cannot listen at 192.0.2.1:"),
        (0, "nowhere.invalid", r"MASTER_ADDR, MASTER_PORT: .* nowhere.invalid:\d+ \(.+\); give"),
        (1, "127.0.0.1", r"launch.start_timeout_seconds: rank 1 finds no rendezvous at .* 0.5 s"),
        (1, "localhost", r"launch.start_timeout_seconds: rank 1 finds no rendezvous at .* 0.5 s"),
        (0, "no port", "RANK, WORLD_SIZE, MASTER_PORT, MASTER_ADDR: .*'http'"),
    ],
    ids=["port in use", "address of nobody", "unknown host", "no rank 0", "another program", "no port"],
)  # fmt: skip
def test_a_place_without_a_store_is_one_line(
    rank: int, host: str, says: str, by_hand: Callable[..., None], free: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    by_hand(rank, 2, "http" if host == "no port" else free)
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 0.5)
    with socket.socket() as taken:
        if rank == 0 or host == "localhost":
            taken.bind(("127.0.0.1", free))
            taken.listen()
        with pytest.raises(UserError, match=f"^{says}"):
            Rendezvous(0.5)


def test_ranks_that_never_start_are_named(by_hand: Callable[..., None], free: int) -> None:
    met = []
    for rank in (0, 2):
        by_hand(rank, 4, free)
        met.append(Rendezvous(0.5))
    met[1].store.set("start/2", "")
    line = "launch.start_timeout_seconds: ranks 1, 3 of 4 did not come (start) within 0.5 s; "
    with pytest.raises(UserError, match=f"^{re.escape(line)}"):
        met[0].gather("start")


def test_a_hosted_store_listens_at_its_own_address_alone(
    by_hand: Callable[..., None], free: int
) -> None:
    with socket.create_server(("", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        assert {p for _, p in open_to_others([os.getpid()])} >= {port}, "this test sees sockets"
    before = listening([os.getpid()])
    store = hosted_store()
    assert listening([os.getpid()]) - before == {("127.0.0.1", store.port)}
    del store
    wait_for(lambda: listening([os.getpid()]) == before, "the store's end")
    by_hand(0, 2, free)
    first = Rendezvous(1.0)
    assert listening([os.getpid()]) - before == {("127.0.0.1", free)}
    by_hand(1, 2, free)
    first.send_instructions("train")
    assert Rendezvous(1.0).receive_instructions() == "train"


def test_gloo_and_nccl_use_loopback_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    use_loopback()
    assert [os.environ[name] for name in names] == ["lo", "lo"]
    monkeypatch.setenv(names[0], "eth1")
    monkeypatch.delenv(names[1])
    use_loopback()
    assert os.environ[names[0]] == "eth1"
    assert names[1] not in os.environ


# -- nodes that differ ---------------------------------------------------------------------------


LATE = SimpleNamespace(
    time=by_rank(1e9, 1e9 - CLOCK_SECONDS - 1),
    monotonic=rendezvous.time.monotonic, sleep=rendezvous.time.sleep,
)  # fmt: skip


@pytest.mark.parametrize(
    ("where", "what", "says"),
    [
        (rendezvous, {"code_hash": by_rank("aaaa", "bbbb")},
         "dgc_repro: rank 0 on node0 has {v} (code aaaa), rank 1 on node1 {v} (code bbbb); it has"),
        (rendezvous, {"config_hash": by_rank("aaaa", "bbbb")},
         "config, or the source of your own classes: rank 0 on node0 has aaaa, rank 1 on node1 bbbb"),
        (worker, {"choose_device": by_rank(Place("cuda", "nccl"), Place("cpu", "gloo"))},
         "launch.device: rank 0 on node0 has cuda with nccl, rank 1 on node1 cpu with gloo; it has"),
        (worker, {"computed_precision": by_rank("fp16", "bf16")},
         "train.precision: rank 0 on node0 has fp16, rank 1 on node1 bf16; it has"),
        (rendezvous, {"time": LATE},
         "clock: rank 1 is -11 s from rank 0, at most 10 s are allowed; synchronize"),
        (None, {}, "command line: rank 0 on node0 has seed=1, rank 1 on node1 seed=2; it has"),
    ],
    ids=["code", "config", "device", "precision", "clock", "command line"],
)  # fmt: skip
def test_nodes_that_differ_end_with_one_line_on_all_ranks(
    where: Any,
    what: dict[str, Any],
    says: str,
    pair: dict[str, Rendezvous],
    instructions: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in what.items():
        monkeypatch.setattr(where, name, value)
    for rank in "01":
        pair[rank].arguments = [] if what else [f"seed={int(rank) + 1}"]
    monkeypatch.setattr(rendezvous.platform, "node", by_rank("node0", "node1"))
    given = ("dataset=digits", "compressor=topk", "sink=none", "launch.workers=2")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configured(*given)))
    codes = on_both(lambda rank: torchrun.join(instructions, pair[rank]))
    assert codes == dict.fromkeys("01", (USER_ERROR, False))
    line = (tmp_path / "error.txt").read_text()
    assert line.startswith(says.format(v=rendezvous.__version__))


@pytest.mark.parametrize("launch", ["", "of another file system"])
def test_a_run_folder_that_a_node_does_not_share_is_said_on_rank_0(
    launch: str, pair: dict[str, Rendezvous], instructions: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also where the node has a folder of the same name, of an earlier run."""
    monkeypatch.setattr(torchrun, "SHARED_SECONDS", 0.1)
    (tmp_path / LOCK_FILE).unlink()
    if launch:
        (tmp_path / LOCK_FILE).write_text(launch)
    assert torchrun.join(instructions, pair["1"]) == (USER_ERROR, False)
    says = r"^paths\.runs: rank 1 on .* does not see what rank 0 on node0 writes to .*; name"
    with pytest.raises(UserError, match=says):
        pair["0"].gather("start")


def test_other_data_and_other_code_have_other_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def splits(pixel: int) -> Splits:
        images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        images[1, 2, 3, 3] = pixel
        part = Images(images, torch.zeros(2, dtype=torch.int64))
        return Splits(part, part, part, 2, (0.0,) * 3, (1.0,) * 3, "digits", "none")

    assert data_hash(splits(1)) == data_hash(splits(1)) != data_hash(splits(2))
    assert data_hash(splits(1)).startswith("digits (")
    monkeypatch.setattr(rendezvous, "PACKAGE", tmp_path)
    hashes = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "module.py").write_text(text)
        (tmp_path / "module.pyc").write_text(f"{len(hashes)}")
        hashes.append(code_hash())
    assert hashes[0] == hashes[2] != hashes[1]


# -- a collective that fails ---------------------------------------------------------------------

ASKED = "allreduce of gradient (40 bytes)"
HERE = f"the {ASKED} of step 7"
CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
    "[127.0.0.1]:9. This is typically caused by a crash. GLHF!"
)


@pytest.fixture
def trio(
    by_hand: Callable[..., None], free: int, monkeypatch: pytest.MonkeyPatch
) -> list[Rendezvous]:
    """Three ranks that wait for the collective of step 7; the last one says nothing."""
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.5)
    met = []
    for rank in range(3):
        by_hand(rank, 3, free)
        met.append(Rendezvous(20.0))
        met[-1].where = lambda: (7, ASKED)
    return met


def broken() -> CollectiveFailed:
    failed = CollectiveFailed(ASKED, RuntimeError(CLOSED))
    failed.__cause__ = RuntimeError(CLOSED)
    return failed


def test_a_rank_that_does_not_answer_is_named_by_all_survivors(trio: list[Rendezvous]) -> None:
    trio[1].failed(broken(), 9.0)
    assert [rank.failed(broken(), 9.0) for rank in trio[:2]] == 2 * [
        f"rank 2 did not come to {HERE}: rank 2 {NO_ANSWER} (launch.timeout_seconds=9; torch says: "
        "Connection closed by peer [127.0.0.1]:9)"
    ]


def test_a_rank_that_waits_elsewhere_says_where(trio: list[Rendezvous]) -> None:
    trio[1].where = lambda: (6, "barrier of a checkpoint")
    trio[1].failed(RuntimeError(CLOSED), 9.0)
    elsewhere = "rank 1 the barrier of a checkpoint of step 6"
    line = f"ranks 1, 2 did not come to {HERE}: {elsewhere}, rank 2 {NO_ANSWER} ("
    assert trio[0].failed(broken(), 9.0).startswith(line)


def test_a_rank_that_fails_by_itself_is_the_reason_that_the_others_give(
    trio: list[Rendezvous],
) -> None:
    own = trio[1].failed(OSError(5, "Input/output\nerror"), 9.0)
    assert own == "OSError: [Errno 5] Input/output error (rank 1, step 7)"
    assert trio[0].failed(broken(), 9.0) == own


def test_what_breaks_off_inside_a_collective_says_which_one_it_was() -> None:
    clock = Clock(torch.device("cpu"))
    with pytest.raises(CollectiveFailed) as failed, asking(ASKED, clock):
        raise RuntimeError(CLOSED)
    said = (ASKED, "Connection closed by peer [127.0.0.1]:9")
    assert failed_collective(failed.value) == said
    assert clock.waits_for == ASKED  # and the rank is still there, should another ask
    with pytest.raises(ValueError, match="broken"), asking(ASKED, clock):
        raise ValueError("a broken payload")
    with asking("another", clock):
        assert clock.waits_for == "another"
    assert clock.waits_for == ""


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (dist.DistBackendError("NCCL error\nand its trace"), ("", "NCCL error")),
        (
            RuntimeError("Application timeout caused pair closure"),
            ("", "Application timeout caused pair closure"),
        ),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] not enough memory"), None),
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (FileNotFoundError("/data/gloo/images.npy"), None),
        (RuntimeError("no kernel of gloo for this type"), None),
    ],
)
def test_an_error_of_this_ranks_own_is_no_broken_collective(
    error: Exception, found: tuple[str, str] | None
) -> None:
    assert failed_collective(error) == found
    with pytest.raises(type(error) if found is None else CollectiveFailed) as failed:  # noqa: SIM117
        with asking(ASKED, Clock(torch.device("cpu"))):
            raise error
    assert failed_collective(failed.value) == (found and (ASKED, found[1]))
