"""``torchrun -m dgc_repro``: each process is a rank, rank 0 reads the command line, there is one record.

Several nodes are two agents of torchrun, or two ranks started by hand, on this machine."""

from __future__ import annotations

import contextlib
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
from typing import NoReturn

import pytest
from commands import PATHS, PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, TEXT, configured

from dgc_repro.errors import UserError
from dgc_repro.launch import main, torchrun
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.main import COMMANDS
from dgc_repro.launch.ranks import USER_ERROR, last_checkpoint
from dgc_repro.launch.rendezvous import Rendezvous
from dgc_repro.launch.torchrun import refuse_restarts, with_workers

A_FEW_SECONDS = 5.0
HERE = ("launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=120", "sink=none")
RUN = (
    *(*HERE, *PLAIN, "dataset=digits", "dataset.train_size=128", "dataset.validation=51"),
    *("dataset.test_size=53", "compressor=topk", "train.batch_size=16", "sink.every_steps=1"),
)  # 4 steps an epoch
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "dgc_repro")
Commands = Callable[..., Command]


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("", "launch.workers=2"),
        ("compressor=topk seed=1", "launch.workers=2 compressor=topk seed=1"),
        ("launch.workers=3 seed=1", "launch.workers=3 seed=1"),  # refused when it is composed
        ("reproduce dynamic/table1", "reproduce: starts ranks of its own"),
        ("seed=0,1 -m", "-m: starts ranks of its own"),
    ],
)
def test_the_number_of_workers_is_torchruns_and_what_is_not_one_run_is_refused(
    given: str, becomes: str
) -> None:
    try:
        assert " ".join(with_workers(given.split(), 2, COMMANDS)) == becomes
    except UserError as error:
        assert str(error).startswith(becomes)  # noqa: PT017  # one table for both


@pytest.mark.parametrize(
    ("nodes", "restarts", "shared", "is_refused"),
    [("2", "1", "True", True), ("2", "1", "False", False), ("1", "1", "True", False),
     ("2", "0", "True", False)],
)  # fmt: skip
def test_restarts_on_several_nodes_need_a_store_of_their_own(
    nodes: str, restarts: str, shared: str, is_refused: bool
) -> None:
    names = ("GROUP_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE")
    refuses = pytest.raises(UserError, match=r"^--max-restarts: .*TCP_STORE=1")
    with refuses if is_refused else contextlib.nullcontext():
        refuse_restarts(dict(zip(names, (nodes, restarts, shared), strict=True)))


def test_what_fails_while_a_rank_works_is_not_taken_for_a_folder_that_is_not_seen(
    instructions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a library on a disk that fails."""

    def failing(*_: object) -> NoReturn:
        raise OSError("libtorch: Input/output error")

    monkeypatch.setattr(torchrun, "work", failing)
    with pytest.raises(OSError, match="libtorch"):
        torchrun.join(instructions, SimpleNamespace(rank=1))  # type: ignore[arg-type]


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("compressor=topkk", "compressor: no 'topkk'"),
        ("launch.workers=3", "launch.workers: 3 given, torchrun started 2;"),
        ("launch=simulated", "launch.kind: simulated starts its own processes; leave torchrun out"),
        ("--cfg job", ""),
    ],
)
def test_a_mistake_is_one_line_of_rank_0_and_all_ranks_end_alike(
    given: str, says: str, pair: dict[str, Rendezvous],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """As both ranks do it, but that they are threads and end with an exception."""

    def leave(code: int) -> None:
        ended[threading.current_thread().name] = code
        raise SystemExit(code)

    ended: dict[str, int] = {}

    def follow() -> None:
        with contextlib.suppress(SystemExit):
            torchrun.follow()

    thread = threading.Thread(target=follow, name="1", daemon=True)
    monkeypatch.setattr(
        torchrun, "_met", lambda: pair[threading.current_thread().name.replace("MainThread", "0")]
    )
    monkeypatch.setattr(torchrun, "leave", leave)
    monkeypatch.setattr(sys, "argv", ["dgc_repro", *given.split()])
    thread.start()
    with pytest.raises(SystemExit):
        main.main()
    thread.join(PATIENCE_SECONDS)
    assert ended == dict.fromkeys(("MainThread", "1"), USER_ERROR if says else 0)
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"error: {says}") for line in said] == [True] * bool(says)
    assert list(Path().iterdir()) == []


# -- real processes ------------------------------------------------------------------------------


def assert_run_of_one_machine(command: Command, *overrides: str) -> None:
    """The id of a run of our own launcher, and the numbers of a simulated one."""
    folder = command.run_folder()
    assert folder.name.rpartition("-")[2] == config_hash(configured(*overrides))
    assert_ends_as_simulated(folder, *overrides)


@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_SECONDS)
def test_a_run_loses_its_agent_and_a_rank_is_stopped_and_goes_on_from_the_launcher(
    commands: Commands,
) -> None:
    given = (*RUN, "train.epochs=100")
    torchrun, launcher = (
        commands(*given, through=form) for form in (TORCHRUN, ("dgc_repro", "launch.workers=2"))
    )
    torchrun.start()
    torchrun.wait_for_step(41)
    ranks = set(torchrun.ranks().values())
    assert len(ranks) == 2
    torchrun.process.kill()  # the agent
    wait_for(lambda: not processes_of(torchrun.runs).keys() & ranks, "the ranks", A_FEW_SECONDS)
    torchrun.process.communicate(timeout=PATIENCE_SECONDS)
    folder = torchrun.run_folder()
    saved = last_checkpoint(folder) or 0
    assert saved >= 20

    torchrun.start()
    torchrun.wait_for_step(saved + 6)
    os.kill(torchrun.ranks()["1"], signal.SIGKILL)
    code, errors = torchrun.end()
    assert code == 1
    (line,) = [line for line in errors if line.startswith("error: ")]
    assert line.startswith("error: rank 1 did not come to the ")
    saved = last_checkpoint(folder) or 0
    assert f"the checkpoint of step {saved} is kept" in line

    torchrun.start()
    torchrun.wait_for_step(saved + 6)
    torchrun.process.send_signal(signal.SIGINT)
    code, errors = torchrun.end()
    assert code != 0
    said = "\n".join(errors)
    assert said.count("error: stopped after a checkpoint; the same command continues") == 1
    stopped_at = torchrun.summary()["steps"]
    assert stopped_at == last_checkpoint(folder) < 400

    launcher.start()
    assert launcher.end() == (0, [])
    assert launcher.summary()["status"] == "finished"
    assert f"continuing at step {stopped_at} " in (folder / "metrics.jsonl").read_text()
    assert_run_of_one_machine(launcher, *given, "launch.workers=2")
    torchrun.start()
    assert (torchrun.end()[0], torchrun.printed().count("already done: ")) == (0, 1)
    assert launcher.run_folder() == folder


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_real_ranks_with_different_data_end_with_one_line(tmp_path: Path, free: int) -> None:
    """Each rank has a working folder of its own; the command line is the same."""
    text = ("dataset=ptb", "dataset.root=text", "dataset.train_part=valid", "dataset.bptt=12")
    given = ("launch.workers=2", *TEXT, *text, *HERE, f"paths.runs={tmp_path / 'runs'}")
    started = []
    for rank in "01":
        folder = tmp_path / rank / "text"
        folder.mkdir(parents=True)
        for part in ("train", "valid", "test"):
            line = "a c b" if rank == "1" else "a b c"
            (folder / f"ptb.{part}.txt").write_text(f"{line}\n" * 600)
        place = {"RANK": rank, "GROUP_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "dgc_repro", *given],
                cwd=folder.parent, env=os.environ | PATHS | place, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    errors = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], errors
    (line,) = errors[0].splitlines()
    said = r"error: dataset: rank 0 on \S+ has ptb.* \((\w+)\), rank 1 on \S+ ptb.* \((\w+)\); "
    shown = re.match(said, line)
    assert shown, line
    assert shown[1] != shown[2]


def agents(
    make: Commands, *overrides: str, ranks: int, options: Sequence[str] = ()
) -> list[Command]:
    """Two agents of torchrun, of so many ranks each, that are not started yet."""
    found = []
    for node in "01":
        given = ("--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={ranks}")
        through = ("torch.distributed.run", *given, *options, "-m", "dgc_repro")
        found.append(make(*overrides, through=through))
        found[-1].output = f"stdout-{node}.txt"
    return found


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_two_nodes_of_two_ranks_make_the_run_of_one_machine(commands: Commands, free: int) -> None:
    # Without `per_layer`, whose dense sums of four workers are equal to rounding only.
    run = (*RUN, "wrap=[error_feedback]", "train.epochs=2", "train.batch_size=8")
    options = ["--master-addr=127.0.0.1", f"--master-port={free}"]
    nodes = agents(commands, *run, ranks=2, options=options)
    for node in nodes:
        node.start()
    errors = [node.process.communicate(timeout=2 * PATIENCE_SECONDS)[1] for node in nodes]
    assert [node.process.returncode for node in nodes] == [0, 0], errors
    assert sum(node.printed().count("run folder: ") for node in nodes) == 1
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
    run = (*RUN, "train.epochs=50")  # 200 steps
    options = ["--max-restarts=1", "--rdzv-id=7", "--rdzv-backend=c10d"]
    options += [f"--rdzv-endpoint=127.0.0.1:{free}"]
    options += ["--rdzv-conf=keep_alive_interval=1"]  # a dead node is noticed after 3 s, not 15
    host, lost = agents(commands, *run, ranks=1, options=options)

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
