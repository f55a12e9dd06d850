"""Runs that are killed, stopped or out of disk: one line says what happened, no process stays behind, and the
same command continues to the bits of a run that nobody disturbed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from sockets import listening, open_to_others
from tiny_run import PLAIN, SETTINGS, TINY, UNIFORM4_EF, tiny

from dgc_repro.errors import DiskFull
from dgc_repro.files import replace
from dgc_repro.launch import main
from dgc_repro.launch.rank_process import work
from dgc_repro.launch.ranks import (
    DISK_FULL,
    LOG_FILE,
    STOP_SIGNALS,
    Ranks,
    RunFailed,
    RunStopped,
    execute,
    last_checkpoint,
    what_failed,
)
from dgc_repro.launch.run import run_config
from dgc_repro.sink.jsonl import write_line
from dgc_repro.train import checkpoint

Commands = Callable[..., Command]
RUN = (
    *(*TINY, "launch=local", "launch.timeout_seconds=60", "sink.every_steps=1"),
    *("dataset.train_size=640", "train.batch_size=8"),
)  # 40 steps an epoch
STEPS_PER_EPOCH = 40
STOPPED = "error: stopped after a checkpoint; the same command continues"

# -- killed --------------------------------------------------------------------------------------


def kill(command: Command, step: int, who: str) -> None:
    """SIGKILL for a rank, for the parent or for all; ``damaged``: all, and rank 1's last checkpoint."""
    command.start()
    command.wait_for_step(step)
    found = {f"rank {rank}": [pid] for rank, pid in command.ranks().items()}
    found |= {"parent": [command.process.pid]}
    for pid in found.get(who, [command.process.pid, *command.ranks().values()]):
        os.kill(pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    if who == "damaged":  # and the command is given again before what is left has ended
        path = max((command.run_folder() / "checkpoints").glob("step-*")) / "worker-1.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))
    else:
        wait_for(lambda: processes_of(command.runs) == {}, "the others to end")


@pytest.mark.parametrize(
    ("name", "launch", "kills"),
    [
        ("error feedback", "local", ["rank 0", "damaged", "parent"]),
        ("gravac", "simulated", ["parent"] * 2),
    ],
    ids=["local", "simulated"],
)
@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_SECONDS)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    name: str, launch: str, kills: list[str], commands: Commands
) -> None:
    run = (*RUN, *PLAIN, *SETTINGS[name], f"launch={launch}", "train.epochs=6")
    command = commands(*run)
    for number, who in enumerate(kills):
        # Before the first checkpoint, then between two.
        kill(command, 2 * number * STEPS_PER_EPOCH + 30, who)
    command.start()
    assert command.end() == (0, [])
    assert_ends_as_simulated(command.run_folder(), *run)
    notes = (command.run_folder() / "metrics.jsonl").read_text()
    assert ("worker-1.pt is damaged" in notes) == ("damaged" in kills)


# -- lost ----------------------------------------------------------------------------------------


COMES_NOT = "rank 1 did not come to the "
SILENT = "rank 1 does not answer: killed, stopped, cut off or busy (launch.timeout_seconds=4; "
RAISING = ("~model", "+model={_target_:odd_models.Raising,at_step:3}")


@pytest.mark.parametrize(
    ("overrides", "hurt", "begins", "says"),
    [
        ((*PLAIN, "exchange.overlap=true", *SETTINGS["topk"]), signal.SIGKILL, COMES_NOT,
         "(launch.timeout_seconds=60; torch says: "),
        # It ends after 4 s (timeout), 4 s (report) and 15 s.
        ((*PLAIN, *SETTINGS["dense"], "launch.timeout_seconds=4"), signal.SIGSTOP, COMES_NOT, SILENT),
        (RAISING, None, "FloatingPointError: the forward pass went wrong (rank 1, step 3); ", ""),
    ],
    ids=["killed", "stands still", "raises"],
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_rank_that_is_lost_ends_the_run_on_all_ranks_with_one_line(
    overrides: tuple[str, ...], hurt: int | None, begins: str, says: str, commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """While the run is live, no socket of it is open to other machines."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    command = commands(*RUN, "train.epochs=2000", *overrides)
    command.start()
    if hurt is not None:
        wait_for(lambda: len(list(command.runs.glob("*/checkpoints/step-*"))) == 2, "2 epochs")
        ranks = command.ranks()
        assert len(listening(ranks.values())) >= len(ranks), "gloo listens in each rank"
        assert listening([command.process.pid]) != set(), "the launcher hosts the store"
        assert open_to_others([command.process.pid, *processes_of(command.runs)]) == set()
        os.kill(ranks["1"], hurt)
    code, lines = command.end()
    assert (code, len(lines)) == (1, 1), lines
    line = lines[0].removeprefix("error: ")
    assert line.startswith(begins)
    assert says in line
    # Other ranks are killed by the launcher, at the end.
    assert ("rank 1 was killed by SIGKILL" in line) == (hurt == signal.SIGKILL)
    assert "was killed by" not in line.replace("rank 1 was killed by SIGKILL", "")
    folder = command.run_folder()
    assert line.endswith(f" (tracebacks: {folder / LOG_FILE})")
    kept = f"the checkpoint of step {last_checkpoint(folder)} is kept, the same command continues"
    assert ("no checkpoint yet" if hurt is None else kept) in line


def test_the_reason_of_a_failure_without_a_file_is_the_last_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / LOG_FILE
    log.write_text("Traceback (most recent call last):\n  ...\nImportError: libcudart.so\n")
    ending = f"; no checkpoint yet, the same command starts again (tracebacks: {log})"
    assert what_failed(tmp_path) == f"ImportError: libcudart.so{ending}"
    assert what_failed(tmp_path, "rank 1 was killed") == f"rank 1 was killed{ending}"
    log.write_text("")
    without = ending.partition(" (")[0]  # an empty log is not worth reading
    assert what_failed(tmp_path) == f"a rank ended without an error message{without}"


# -- stopped -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_SECONDS)
def test_a_run_survives_every_signal_that_stops_it(commands: Commands) -> None:
    """Ctrl-C, a closed terminal, a batch system, and a signal to one rank alone: all agree on a step."""
    run = (*RUN, *PLAIN, *UNIFORM4_EF, "train.epochs=6")
    command = commands(*run)
    last = 0
    signals = ((signal.SIGINT, ""), (signal.SIGHUP, ""), (signal.SIGTERM, ""), (15, "0"))
    for number, whose in signals:
        command.start()
        command.wait_for_step(last + 5)
        for _ in range(1 if whose else 2):  # an impatient user: the second signal changes nothing
            os.kill(command.ranks()[whose] if whose else command.process.pid, number)
            time.sleep(0.1)
        assert command.end() == (128 + number, [STOPPED])
        before, last = last, command.steps_saved()[-1]
        assert before + 5 < last < 6 * STEPS_PER_EPOCH
        assert (command.summary()["status"], command.summary()["steps"]) == ("stopped", last)
    command.start()
    assert command.end() == (0, [])
    assert command.summary()["status"] == "finished"
    assert_ends_as_simulated(command.run_folder(), *run)
    notes = (command.run_folder() / "metrics.jsonl").read_text()
    assert notes.count("continuing at step") == 4
    assert f"continuing at step {last} " in notes


ENDLESS = """
from functools import partial
from types import SimpleNamespace
from dgc_repro.launch import ranks
ranks.STOP_SECONDS = {seconds}
ranks.StopSignals({end}).on(partial(ranks.ask_to_stop, SimpleNamespace(stop_requested=False)))
print("begun", flush=True)
while True:
    pass
"""


@pytest.mark.parametrize(
    ("end", "presses", "ends_with"),
    [(None, 1, signal.SIGALRM), ("ranks.end_by", 3, signal.SIGINT)],
    ids=["by the system", "by the third signal"],
)
@pytest.mark.slow
def test_a_step_that_never_ends_is_ended_after_a_stop(
    end: str | None, presses: int, ends_with: int
) -> None:
    program = ENDLESS.format(end=end, seconds=1 if end is None else 99)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        try:
            assert process.wait(PATIENCE_SECONDS) == -ends_with
        finally:
            process.kill()


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(99)"


def test_a_third_signal_ends_ranks_that_do_not_stop(tmp_path: Path) -> None:
    def press_three_times() -> None:
        for _ in range(3):
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press_three_times)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        with (tmp_path / "log").open("w") as log:
            ranks = Ranks(tmp_path, log, 2)
            presses.start()
            ranks.run([sys.executable, "-c", DEAF], os.environ)
            presses.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [process.returncode for process in ranks.processes] == [-signal.SIGKILL] * 2
    assert ranks.stopped_by == signal.SIGINT


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RunStopped(signal.SIGTERM, has_checkpoint=False), 143, "before the first checkpoint"),
        (KeyboardInterrupt(), 130, "stopped before the run began"),
        (
            DiskFull("a.csv"),
            1,
            "no space left on the disk of a.csv; free some, and give the same com",
        ),
        (RunFailed("OSError: [Errno 5]"), 1, "error: OSError: [Errno 5]"),
    ],
)
def test_the_command_line_says_it_in_one_line(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert main.answer(fail) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


# -- a full disk ---------------------------------------------------------------------------------

FULL = Path("/dev/full")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MiB, which a test fills; skipped where a test may not mount one."""
    place = tmp_path / "runs"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs rights that this process does not have")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, left: int = 0) -> None:
    """Use all space but ``left`` bytes."""
    with (disk / "filler").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(max(0, file.tell() - left))


def test_what_is_written_names_the_file_of_a_full_disk(disk: Path) -> None:
    fill(disk)
    kept = disk / "filler"
    whole = kept.stat().st_size
    says = r"^no space left on the disk of {}; free some$"
    with pytest.raises(DiskFull, match=says.format(disk / "summary.json")):
        replace(disk / "summary.json", bytes(4096))
    with pytest.raises(DiskFull, match=says.format(disk / "shared.pt")):  # torch: RuntimeError
        checkpoint._write(disk / "shared.pt", lambda f: torch.save(torch.zeros(100_000), f))
    assert list(disk.iterdir()) == [kept]
    assert kept.stat().st_size == whole
    file = FULL.open("w")
    with pytest.raises(DiskFull, match=says.format(FULL)):
        write_line(file, {"step": 1})
    with pytest.raises(OSError, match="No space left"):
        file.close()


def test_a_rank_on_a_full_disk_ends_with_its_own_exit_code_and_no_more_errors(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path, *_: object) -> int:
        raise DiskFull(folder / "metrics.jsonl")

    monkeypatch.setattr("dgc_repro.launch.worker.run_worker", fails)
    fill(disk)
    log = FULL.open("w")
    assert work(disk, log) == (DISK_FULL, False)
    log.close()  # nothing is left that would be written again
    (disk / "launch.log").touch()
    line = f"no space left on the disk of {disk}; free some; no checkpoint yet, the same command starts again"
    assert what_failed(disk, str(DiskFull(disk))) == line


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
@pytest.mark.parametrize("launch", ["local", "simulated"])
def test_a_run_whose_disk_fills_up_continues_once_there_is_space(
    commands: Commands, disk: Path, launch: str
) -> None:
    """It may fill up at any file: the record, a checkpoint or the log."""
    mine = (*TINY, *PLAIN, *UNIFORM4_EF, "sink.every_steps=1", "train.epochs=80")
    command = commands(*mine, f"launch={launch}", "launch.workers=2")
    command.start()
    wait_for(lambda: len(list(disk.glob("*/checkpoints/step-*"))) == 2, "2 epochs")
    fill(disk)
    code, lines = command.end()
    assert code == 1
    (line,) = lines
    (folder,) = [path for path in disk.iterdir() if path.is_dir()]
    step = last_checkpoint(folder)
    assert line.startswith(f"error: no space left on the disk of {folder}")
    assert f"; the checkpoint of step {step} is kept, the same command continues from it" in line
    assert ("tracebacks:" in line) == bool((folder / "launch.log").stat().st_size)
    (disk / "filler").unlink()
    command.start()
    assert command.end() == (0, [])
    assert_ends_as_simulated(folder, *mine)


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_sweep_on_a_full_disk_is_no_traceback(commands: Commands, disk: Path) -> None:
    fill(disk, left=4 * 4096)
    sweep = (*TINY, *PLAIN, *UNIFORM4_EF, "--multirun", "seed=0,1")
    command = commands(*sweep, f"hydra.sweep.dir={disk}/sweep")
    command.start()
    code, lines = command.end()
    assert code == 1
    assert "Traceback" not in "".join(lines) + command.printed()
    assert "no space left on the disk of " in lines[-1]
    (disk / "filler").unlink()
    command = commands(*sweep, f"hydra.sweep.dir={disk}/again")
    command.start()
    assert command.end()[0] == 0


# -- simulated runs of one command take place in its process --------------------------------------


def losses(folder: Path, *settings: str, apart: bool = False) -> list[float]:
    """The training losses of a run; ``apart``: in a process of its own."""
    config = tiny(f"paths.runs={folder}", "train.epochs=2", *settings)
    apart_from_here = functools.partial(execute, apart=True) if apart else None
    made = run_config(config, train=apart_from_here)
    lines = map(json.loads, (made / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if line["kind"] == "epoch"]


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_a_simulated_run_after_others_has_the_numbers_of_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dgc_repro.launch.run.check_launch", lambda config: None)
    before = (torch.get_num_threads(), *map(signal.getsignal, STOP_SIGNALS))
    alone = losses(tmp_path / "alone", apart=True)
    assert losses(tmp_path / "other", "seed=1", "launch.threads=2") != alone
    with pytest.raises(RunFailed, match=r"KeyError: 'RANK'; .*tracebacks: .*launch\.log"):
        losses(tmp_path / "failed", *RAISING)
    assert losses(tmp_path / "after", "launch.threads=1") == alone
    assert (torch.get_num_threads(), *map(signal.getsignal, STOP_SIGNALS)) == before


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_a_sweep_that_is_stopped_in_its_second_run_continues(commands: Commands) -> None:
    given = ("launch=simulated", "seed=0,1", "train.epochs=8", "train.batch_size=16")
    command = commands("--multirun", *RUN, *PLAIN, *given)
    command.start()
    wait_for(lambda: len(list(command.runs.glob("*-s1-*/steps.jsonl"))) == 1, "the second run")
    for _ in range(2):  # the second signal changes nothing
        command.process.send_signal(signal.SIGINT)
    assert command.end()[0] == 128 + signal.SIGINT
    assert "a third signal ends the run at once" in command.printed()
    command.start()
    assert command.end() == (0, [])
    summaries = [json.loads(path.read_text()) for path in command.runs.glob("*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]
    second = next(command.runs.glob("*-s1-*/metrics.jsonl")).read_text()
    assert second.count("continuing at step") == 1
