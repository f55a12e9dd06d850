"""Several nodes: one record, a line where they differ, and a lost node that is started again.

Two agents of torchrun, or two ranks started by hand, on this machine; the everyday tests take two threads.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from commands import PATHS, PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, TEXT, configured

from dgc_repro.dataset.images import Images, Splits
from dgc_repro.errors import UserError
from dgc_repro.launch import agreement, torchrun, worker
from dgc_repro.launch.agreement import CLOCK_SECONDS, code_hash, data_hash
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import last_checkpoint
from dgc_repro.launch.parent import OWN_TARGETS
from dgc_repro.launch.rendezvous import Rendezvous
from dgc_repro.launch.worker import USER_ERROR

RUN = (
    *("launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=120", "sink=none", *PLAIN),
    *("dataset=digits", "dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53"),
    *("compressor=topk", "sink.every_steps=1"),
)
Commands = Callable[..., Command]


# -- nodes that differ ---------------------------------------------------------------------------


def by_rank(*values: Any) -> Callable[..., Any]:
    """A function that returns the value of the rank that calls it."""
    return lambda *_: values[int(threading.current_thread().name)]


@pytest.fixture
def refused(
    pair: dict[str, Rendezvous], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """The line that two ranks, each on a node of its own, end with."""
    monkeypatch.setattr(agreement.platform, "node", by_rank("node0", "node1"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configured(*RUN, "launch.workers=2")))
    (tmp_path / torchrun.TOKEN_FILE).write_text("1234")
    monkeypatch.setenv(OWN_TARGETS, "")  # `join` sets it
    own = "odd_models.Plain"  # the model of RUN
    told = {"folder": str(tmp_path), "token": "1234", "node": "node0", OWN_TARGETS: own}
    codes: dict[str, tuple[int, bool]] = {}

    def join(rank: str) -> None:
        codes[rank] = torchrun.join(told, pair[rank])

    def line() -> str:
        threads = [
            threading.Thread(target=join, args=rank, name=rank, daemon=True) for rank in "01"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert codes == dict.fromkeys("01", (USER_ERROR, False))
        return (tmp_path / "error.txt").read_text()

    return line


@pytest.mark.parametrize(
    ("where", "what", "says"),
    [
        (
            agreement, {"code_hash": by_rank("aaaa", "bbbb")},
            "dgc_repro: rank 0 on node0 has {v} (code aaaa), rank 1 on node1 {v} (code bbbb); install",
        ),
        (
            agreement, {"torchvision_version": by_rank("0.28", "0.30")},
            "torchvision: rank 0 on node0 has 0.28, rank 1 on node1 0.30; install the same version",
        ),
        (
            agreement, {"config_hash": by_rank("aaaa", "bbbb")},
            "config: rank 0 on node0 has aaaa, rank 1 on node1 bbbb; a class of yours",
        ),
        (
            worker, {"choose_device": by_rank(("cuda", "nccl"), ("cpu", "gloo"))},
            "launch.device: rank 0 on node0 has cuda with nccl, rank 1 on node1 cpu with gloo; give",
        ),
        (
            agreement, {"time": SimpleNamespace(time=by_rank(1e9, 1e9 - CLOCK_SECONDS - 1))},
            "clock: rank 1 on node1 is 11 s behind rank 0 on node0, at most 10 s are allowed; synchro",
        ),
    ],
    ids=["code", "version", "config", "device", "clock"],
)  # fmt: skip
def test_nodes_that_differ_end_with_one_line_on_all_ranks(
    where: Any,
    what: dict[str, Any],
    says: str,
    refused: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in what.items():
        monkeypatch.setattr(where, name, value)
    assert refused().startswith(says.format(v=agreement.__version__))


def test_of_two_command_lines_the_line_shows_where_they_differ(
    refused: Callable[[], str], pair: dict[str, Rendezvous]
) -> None:
    pair["0"].arguments = ["seed=1", "compressor=topk"]
    pair["1"].arguments = ["compressor=dense", "seed=1"]
    assert refused().startswith(
        "command line: rank 0 on node0 has compressor=topk, rank 1 on node1 compressor=dense; give"
    )


@pytest.mark.parametrize("token", [None, "of another file system"])
def test_a_run_folder_that_a_node_does_not_share_is_said_on_rank_0(
    token: str | None,
    pair: dict[str, Rendezvous],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the node has a folder of the same name, of an earlier run."""
    monkeypatch.setattr(torchrun, "PATIENCE_SECONDS", 0.1)
    folder = tmp_path / "elsewhere"
    if token is not None:
        folder.mkdir()
        (folder / "config.yaml").write_text("{}")
        (folder / torchrun.TOKEN_FILE).write_text(token)
    told = {"folder": str(folder), "token": "1234", "node": "node0", OWN_TARGETS: ""}
    assert torchrun.join(told, pair["1"]) == (USER_ERROR, False)
    says = (
        r"^paths\.runs: rank 1 on .* does not see what rank 0 on node0 writes to .*elsewhere; name"
    )
    with pytest.raises(UserError, match=says):
        pair["0"].wait_for_all("start")


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
    monkeypatch.setattr(agreement, "PACKAGE", tmp_path)
    hashes = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "module.py").write_text(text)
        (tmp_path / "module.pyc").write_text(f"{len(hashes)}")
        hashes.append(code_hash())
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize(
    ("nodes", "restarts", "shared", "is_refused"),
    [
        ("2", "1", "True", True),
        ("2", "1", "False", False),
        ("1", "1", "True", False),
        ("2", "0", "True", False),
    ],
)
def test_restarts_on_several_nodes_need_a_store_of_their_own(
    nodes: str, restarts: str, shared: str, is_refused: bool
) -> None:
    environment = {
        "GROUP_WORLD_SIZE": nodes,
        "TORCHELASTIC_MAX_RESTARTS": restarts,
        "TORCHELASTIC_USE_AGENT_STORE": shared,
    }
    if is_refused:
        with pytest.raises(
            UserError, match=r"^--max-restarts: .*TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        ):
            torchrun.refuse_restarts(environment)
    else:
        torchrun.refuse_restarts(environment)


# -- real processes ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_real_ranks_with_different_data_end_with_one_line(tmp_path: Path, free: int) -> None:
    """Each rank has a working folder of its own; the command line is the same."""
    text = ("dataset=ptb", "dataset.root=text", "dataset.train_part=valid", "dataset.bptt=12")
    text += (
        "launch.threads=1",
        "launch.device=cpu",
        "sink=none",
        f"paths.runs={tmp_path / 'runs'}",
    )
    started = []
    for rank in "01":
        folder = tmp_path / rank / "text"
        folder.mkdir(parents=True)
        for part in ("train", "valid", "test"):
            line = "a c b" if rank == "1" else "a b c"
            (folder / f"ptb.{part}.txt").write_text(f"{line}\n" * 600)
        place = {"RANK": rank, "GROUP_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free)}
        command = [sys.executable, "-m", "dgc_repro", "launch.workers=2", *TEXT, *text]
        started.append(
            subprocess.Popen(
                command,
                cwd=folder.parent,
                env=os.environ | PATHS | place,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    errors = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], errors
    (line,) = errors[0].splitlines()
    said = r"error: dataset: rank 0 on \S+ has ptb.* \((\w+)\), rank 1 on \S+ ptb.* \((\w+)\); "
    shown = re.match(said, line)
    assert shown, line
    assert shown[1] != shown[2]


def agents(
    make: Commands, free: int, *overrides: str, ranks: int, options: Sequence[str] = ()
) -> list[Command]:
    """Two agents of torchrun, of so many ranks each, that are not started yet."""
    found = []
    for node in "01":
        given = ("--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={ranks}")
        through = ("torch.distributed.run", *given, *options, "-m", "dgc_repro")
        found.append(make(*overrides, through=through))
        found[-1].output = f"stdout-{node}.txt"
    return found


def assert_run_of_one_machine(command: Command, *overrides: str) -> None:
    """The id of a run of our own launcher, and the numbers of a simulated one."""
    folder = command.run_folder()
    assert folder.name.rpartition("-")[2] == config_hash(configured(*overrides))
    assert_ends_as_simulated(folder, *overrides)


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_two_nodes_of_two_ranks_make_the_run_of_one_machine(commands: Commands, free: int) -> None:
    # Without `per_layer`, whose dense sums of four workers are equal to rounding only.
    run = (*RUN, "wrap=[error_feedback]", "train.epochs=2", "train.batch_size=8")
    options = ["--master-addr=127.0.0.1", f"--master-port={free}"]
    nodes = agents(commands, free, *run, ranks=2, options=options)
    for node in nodes:
        node.start()
    errors = [node.process.communicate(timeout=2 * PATIENCE_SECONDS)[1] for node in nodes]
    assert [node.process.returncode for node in nodes] == [0, 0], errors
    assert sum(node.printed().count("run folder: ") for node in nodes) == 1
    assert nodes[0].summary()["status"] == "finished"
    environment = json.loads((nodes[0].run_folder() / "environment.json").read_text())
    assert environment["world_size"] == 4
    assert environment["hardware"].startswith("2 nodes, ")
    assert_run_of_one_machine(nodes[0], *run, "launch.workers=4")


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_node_that_is_killed_and_started_again_continues_from_the_last_checkpoint(
    commands: Commands, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    run = (*RUN, "train.epochs=50", "train.batch_size=16")  # 200 steps
    options = ["--max-restarts=1", "--rdzv-id=7", "--rdzv-backend=c10d"]
    options += [f"--rdzv-endpoint=127.0.0.1:{free}"]
    options += ["--rdzv-conf=keep_alive_interval=1"]  # a dead node is noticed after 3 s, not 15
    host, lost = agents(commands, free, *run, ranks=1, options=options)

    def listens() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", free)) == 0

    host.start()
    wait_for(listens, "the rendezvous of the first node")
    lost.start()
    host.wait_for_step(41)
    first = lost.process
    ranks_before = {pid for pid in host.ranks().values() if parent_of(pid) == first.pid}
    assert len(ranks_before) == 1
    first.send_signal(signal.SIGKILL)  # the agent; the kernel ends its rank with it
    first.communicate(timeout=PATIENCE_SECONDS)
    wait_for(lambda: not processes_of(host.runs).keys() & ranks_before, "the rank of the lost node")
    saved = last_checkpoint(host.run_folder())
    assert saved is not None
    assert saved < 200
    lost.start()
    errors = [node.process.communicate(timeout=PATIENCE_SECONDS)[1] for node in (host, lost)]
    assert [node.process.returncode for node in (host, lost)] == [0, 0], errors
    notes = (host.run_folder() / "metrics.jsonl").read_text()
    assert f"continuing at step {saved} " in notes
    assert_run_of_one_machine(host, *run, "launch.workers=2")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
