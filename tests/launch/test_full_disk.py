"""A full disk is one line that says so and where, and the same command continues once there is space.

The disk is a small tmpfs; where a test may not mount one, it is skipped.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from tiny_run import PLAIN, TINY, UNIFORM4_EF

from dgc_repro.errors import DiskFull
from dgc_repro.launch import main
from dgc_repro.launch.local import last_checkpoint, what_failed
from dgc_repro.launch.worker import DISK_FULL, work
from dgc_repro.sink.jsonl import replace, write_line
from dgc_repro.train import checkpoint

FULL = Path("/dev/full")
RUN = (*TINY, *PLAIN, *UNIFORM4_EF, "sink.every_steps=1")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MiB, which a test fills."""
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


def test_what_is_written_names_the_file_of_a_full_disk(tmp_path: Path, disk: Path) -> None:
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
    line = what_failed(disk, str(DiskFull(disk)))
    assert line == (
        f"no space left on the disk of {disk}; free some; no checkpoint yet, the same command starts again"
    )


def test_the_command_line_names_a_full_disk_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise DiskFull("runs/table.csv")

    assert main.answer(fail) == 1
    assert capsys.readouterr().err == (
        "error: no space left on the disk of runs/table.csv; free some, and give the same command again\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
@pytest.mark.parametrize("launch", ["local", "simulated"])
def test_a_run_whose_disk_fills_up_continues_once_there_is_space(
    commands: Callable[..., Command], disk: Path, launch: str
) -> None:
    """It may fill up at any file: the record, a checkpoint or the log."""
    mine = (*RUN, "train.epochs=80", f"launch={launch}", "launch.workers=2")
    command = commands(*mine)
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
    assert_ends_as_simulated(folder, *mine[:-2])


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_sweep_on_a_full_disk_is_no_traceback(
    commands: Callable[..., Command], disk: Path
) -> None:
    fill(disk, left=4 * 4096)
    command = commands(*RUN, "--multirun", "seed=0,1", f"hydra.sweep.dir={disk}/sweep")
    command.start()
    code, lines = command.end()
    assert code == 1
    assert "Traceback" not in "".join(lines) + command.printed()
    assert "no space left on the disk of " in lines[-1]
    (disk / "filler").unlink()
    command = commands(*RUN, "--multirun", "seed=0,1", f"hydra.sweep.dir={disk}/again")
    command.start()
    assert command.end()[0] == 0
