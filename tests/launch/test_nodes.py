"""Several nodes: one record, a line where their data differ, and a lost node that is started again.

Two agents of torchrun, or two ranks started by hand, on this machine; test_rendezvous.py has the other
differences.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from commands import PATHS, PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, TEXT, configured

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import last_checkpoint
from dgc_repro.launch.torchrun import refuse_restarts

RUN = (
    *("launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=120", "sink=none", *PLAIN),
    *("dataset=digits", "dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53"),
    *("compressor=topk", "sink.every_steps=1"),
)
Commands = Callable[..., Command]


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
    with (
        pytest.raises(UserError, match=r"^--max-restarts: .*TCP_STORE=1")
        if is_refused
        else nullcontext()
    ):
        refuse_restarts(environment)


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
