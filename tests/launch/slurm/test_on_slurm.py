"""``launch=slurm`` on a real Slurm: two nodes on this machine, two ranks on each.

``make test-slurm`` runs these; they start daemons as root, so that nothing else does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster import cluster, jobs, missing, processes_with
from commands import PATIENCE_SECONDS, Command, wait_for
from ranks import processes_of
from tiny_run import without_times

WHY_NOT = (
    missing() if os.environ.get("DGC_REPRO_SLURM") else "make test-slurm starts Slurm's daemons"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-"),
    pytest.mark.timeout(6 * PATIENCE_SECONDS),
]
RUN = (
    *("launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=120", "dataset=digits"),
    *("dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53", "model.width=4"),
    *("train.batch_size=16", "compressor=topk", "sink.every_steps=1", "launch.workers=4"),
)  # 2 steps an epoch
TWO_NODES = ("launch=slurm", "launch.nodes=2", "launch.partition=test")
A_FEW_SECONDS = 30


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment variables for Slurm's commands."""
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    with cluster(folder) as place:
        yield place
        assert jobs(place) == {}, "a test has left a job"
    assert processes_with(f"SLURM_CONF={place['SLURM_CONF']}") == []


@pytest.fixture
def commands(
    tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Command]:
    """Makes a `Command` in a folder of its own."""
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)

    def make(name: str, *overrides: str) -> Command:
        (tmp_path / name).mkdir(exist_ok=True)
        return Command(tmp_path / name, *overrides)

    return make


Commands = Callable[..., Command]


def ask(*command: str) -> None:
    subprocess.run(command, check=True)


def folder_of(command: Command) -> Path:
    (path,) = command.runs.glob("*/config.yaml")
    return path.parent


def log_of(command: Command) -> str:
    paths = sorted(command.runs.glob("slurm/*_0_log.out"))
    return paths[-1].read_text() if paths else ""


def record_of(folder: Path) -> list[dict[str, Any]]:
    """All numbers of a finished run but times."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    for key in ("files", "sha256"):  # checksums of files that hold times too
        del summary[key]
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [without_times(record) for record in [summary, *map(json.loads, lines)]]


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    last = max((folder / "checkpoints").iterdir())
    found: dict[str, torch.Tensor] = torch.load(last / "shared.pt", weights_only=True)["model"]
    return found


def test_two_nodes_that_are_stopped_and_requeued_give_the_bits_of_a_local_run(
    commands: Commands,
) -> None:
    run = (*RUN, "train.epochs=80")
    command = commands("slurm", *run, *TWO_NODES, "launch.wait=true")
    command.start()

    def continued(times: int) -> None:
        wait_for(lambda: log_of(command).count("continuing at step") == times, "the next start")
        step = command.last_step()
        wait_for(lambda: command.last_step() > step + 10, "some steps")

    continued(0)
    ask("scancel", "--signal=USR2", "1")  # as before the time limit
    continued(1)
    assert "SIGUSR2: stopping the run after a checkpoint" in log_of(command)
    ask("scontrol", "requeue", "1")
    continued(2)
    code, errors = command.end()
    assert (code, errors) == (0, [])
    assert log_of(command).count("Traceback") == 0
    printed = command.printed()
    assert [printed.count(f"job 1: {state}\n") for state in ("RUNNING", "ended")] == [3, 1]
    assert f"run folder: {folder_of(command)}" in printed

    local = commands("local", *run)
    local.start()
    assert local.end() == (0, [])
    folder, other = folder_of(command), folder_of(local)
    assert folder.name == other.name
    assert record_of(folder) == record_of(other)
    one, two = model_of(folder), model_of(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["hardware"].startswith("2 nodes, the first: ")


def test_a_cancelled_job_leaves_no_process_and_the_same_command_would_continue(
    commands: Commands, slurm: dict[str, str]
) -> None:
    command = commands("slurm", *RUN, *TWO_NODES, "launch.wait=true", "train.epochs=5000")
    command.start()
    wait_for(lambda: command.last_step() > 10, "some steps")
    (job,) = jobs(slurm)
    waits = {command.process.pid}
    assert len(processes_of(command.runs).keys() - waits) >= 4  # ranks
    ask("scancel", job)
    wait_for(lambda: not processes_of(command.runs).keys() - waits, "the ranks", A_FEW_SECONDS)
    code, errors = command.end()
    assert (code, errors) == (
        143,
        ["error: stopped after a checkpoint; the same command continues"],
    )
    assert jobs(slurm) == {}


def test_a_sweep_is_an_array_and_ends_with_its_table(commands: Commands) -> None:
    given = (*RUN[:-1], "launch=slurm", "launch.workers=1", "train.epochs=2", "launch.wait=true")
    command = commands("slurm", *given, "launch.array_parallelism=2", "--multirun", "seed=0,1,2")
    command.start()
    code, errors = command.end()
    assert (code, errors) == (0, [])
    summaries = [json.loads(path.read_text()) for path in command.runs.glob("*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished"] * 3
    printed = command.printed()
    assert printed.count("submitted job ") == 3
    assert f"python -m dgc_repro compare {command.runs.name} draws them" in printed
    command.start()
    assert command.end() == (0, [])
    assert command.printed().count("already done: ") == 3
