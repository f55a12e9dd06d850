"""``launch=slurm`` without a Slurm: `sbatch` and `squeue` are scripts of the test.

slurm/ does it on a real one (``make test-slurm``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import PATHS, PATIENCE_SECONDS, refused, wait_for
from tiny_run import FINISHED, TINY, configured

from dgc_repro.errors import UserError
from dgc_repro.launch import slurm
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.rules import validate
from dgc_repro.launch.run import named, prepare, run_config

Run = Callable[..., tuple[int, list[str]]]
RUN = tuple(override for override in TINY if override != "launch=simulated")
SLURM = ("launch=slurm", *RUN)


SBATCH = """\
if [ -f {folder}/refuses ]; then cat {folder}/refuses >&2; exit 1; fi
echo x >> {folder}/count
number=$(wc -l < {folder}/count)
cp "$1" {folder}/script-$number.sh
echo "Submitted batch job $((10 + number))"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Slurm's commands: `sbatch` keeps the script and answers with the next job id, `squeue`
    prints the file `queue`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    squeue = f"cat {folder}/queue 2>/dev/null || true\n"
    texts = {"sbatch": SBATCH.format(folder=folder), "squeue": squeue, "srun": "exit 1\n"}
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "LOOK_EVERY_SECONDS", 0.01)
    return folder


def options_of(script: Path) -> dict[str, str]:
    """What a batch script asks for."""
    found = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script.read_text(), re.M)
    return {name: value.strip("'") for name, value in found}


def finish(folder: Path) -> None:
    """As a job would leave a run."""
    for path in FINISHED.iterdir():
        if path.name != "config.yaml":
            shutil.copy(path, folder)


def test_a_run_is_submitted_as_the_run_of_a_launcher_with_as_many_workers(
    command: Run, programs: Path
) -> None:
    asks = (
        *("launch.nodes=2", "launch.workers=4", "launch.partition=gpu", "launch.gpus_per_node=2"),
        *("launch.cpus_per_task=8", "launch.time_minutes=30", "launch.sbatch={mem:64G,exclusive:true}"),
        *('launch.setup=["module load cuda"]', "launch.signal_seconds=60", "launch.python=python9"),
    )  # fmt: skip
    assert command(*SLURM, *asks, "seed=3") == (0, [])
    (folder,) = Path("runs").glob("*-s3-*")
    local = configured("launch=local", *RUN, "launch.workers=4", "seed=3")
    assert folder.name == named(local, [*RUN, "launch.workers=4", "seed=3"]).name
    assert yaml.safe_load((folder / "config.yaml").read_text()) == local

    script = (programs / "script-1.sh").read_text()
    options = options_of(programs / "script-1.sh")
    assert options.pop("output") == str(Path("runs/slurm/%j_0_log.out").absolute())
    assert options == {
        "job-name": folder.name, "nodes": "2", "ntasks-per-node": "2", "gpus-per-node": "2",
        "cpus-per-task": "4", "partition": "gpu", "time": "30", "signal": "USR2@60", "mem": "64G",
        "exclusive": "", "requeue": "", "open-mode": "append",
    }  # fmt: skip
    assert "\nmodule load cuda\n" in script
    srun = next(line for line in script.splitlines() if line.startswith("srun "))
    assert "--cpus-per-task=4 --cpu-bind=none python9 -u -m submitit.core._submit " in srun

    # The same command while the job waits, when it is gone, and when the run is finished.
    (programs / "queue").write_text("11 PENDING\n7 RUNNING\n")
    command(*SLURM, *asks, "seed=3")
    (programs / "queue").write_text("")
    command(*SLURM, *asks, "seed=3")
    finish(folder)
    command(*SLURM, *asks, "seed=3")
    assert (folder / slurm.JOB_FILE).read_text() == "12\n"
    assert sorted(path.name for path in programs.glob("script*")) == ["script-1.sh", "script-2.sh"]


def test_a_sweep_is_one_array_of_the_runs_that_are_not_finished(
    command: Run, programs: Path
) -> None:
    finished = configured("launch=local", *RUN, "seed=1")
    folder = named(finished, [*RUN, "seed=1"])
    prepare(folder, finished)
    finish(folder)
    given = (*SLURM, "launch.array_parallelism=2", "--multirun")
    assert command(*given, "seed=0,1,2,3") == (0, [])
    assert options_of(programs / "script-1.sh")["array"] == "0-2%2"
    jobs = {
        path.parent.name.split("-")[-2]: path.read_text().strip()
        for path in Path("runs").glob(f"*/{slurm.JOB_FILE}")
    }
    assert jobs == {"s0": "11_0", "s2": "11_1", "s3": "11_2"}
    assert sorted(Path("runs/slurm").glob("11_1_submitted.pkl"))

    for key in ("nodes", "workers"):
        line = refused(command(*given, f"launch.{key}=1,2"))
        assert line.startswith(f"launch.{key}: the runs of a sweep are one job array")
    line = refused(command(*RUN, "--multirun", "launch=local,slurm"))
    assert line.startswith("launch.kind: slurm submits a sweep as a whole, got local, slurm")


def test_a_file_of_ones_own_holds_what_a_cluster_needs(command: Run, programs: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    Path("conf/launch").mkdir(parents=True)
    Path("conf/launch/mycluster.yaml").write_text(
        re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)[0]
    )
    given = ("--config-dir", "conf", "launch=mycluster", "launch.workers=4")
    assert command(*given, *RUN) == (0, [])
    options = options_of(programs / "script-1.sh")
    assert (options["account"], options["gpus-per-node"]) == ("ml-42", "4")


@pytest.mark.parametrize(
    ("left", "code", "says"),
    [
        ({"failure.txt": "rank 1 did not come"}, 1, "rank 1 did not come; no checkpoint yet"),
        ({"error.txt": "dataset.root: not there"}, 2, "dataset.root: not there"),
        ({"summary.json": '{"status": "stopped"}'}, 143, "stopped before the first checkpoint"),
        ({}, 1, "job 11 has ended before its run; the same command starts or continues it"),
    ],
    ids=["failed", "refused", "stopped", "nothing"],
)
def test_waiting_ends_with_what_has_ended_the_run(
    left: dict[str, str], code: int, says: str, command: Run, programs: Path,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    states = iter([{}, {"11": "PENDING"}, None, {"11": "RUNNING"}, {}])

    def next_states() -> dict[str, str] | None:
        (folder,) = Path("runs").glob("*-s0-*") if Path("runs").exists() else (None,)
        if (now := next(states)) == {} and folder is not None:
            for name, text in left.items():
                (folder / name).write_text(text)
        return now

    monkeypatch.setattr(slurm, "_states", next_states)
    found, lines = command(*SLURM, "launch.wait=true")
    assert found == code
    assert lines[0].startswith(f"error: {says}")


MISTAKES = """
launch.workers=4 launch.nodes=3 | launch.nodes: a whole number that divides launch.work
launch.time_minutes=2 | launch.signal_seconds: less than launch.time_minutes=2, got 120
launch.device=auto launch.gpus_per_node=1 | launch.gpus_per_node: 1 for 2 workers of a
launch.sbatch={mem:false} | launch.sbatch: settings by name, as {name: value}, each a word, a number or true
launch.sbatch={ntasks-per-node:3} | launch.sbatch: ntasks-per-node is set by launch.work
train.resume_from=nowhere | train.resume_from: no checkpoint in nowhere
train.batch_size=100 | launch.workers: 2 workers x 100
"""


@pytest.mark.parametrize(
    ("given", "says"), [line.split(" | ") for line in MISTAKES.strip().splitlines()]
)
def test_a_mistake_is_one_line_before_anything_is_submitted(
    given: str, says: str, command: Run, programs: Path
) -> None:
    assert refused(command(*SLURM, *given.split())).startswith(says)
    assert not list(programs.glob("script*"))
    assert not list(Path().glob("runs/*"))


def test_a_job_that_sbatch_refuses_is_one_line_and_leaves_no_run_folder(
    command: Run, programs: Path
) -> None:
    (programs / "refuses").write_text("sbatch: error: invalid partition specified: gpu\n")
    for sweep in ([], ["--multirun", "seed=0,1"]):
        line = refused(command(*SLURM, "launch.partition=gpu", *sweep))
        assert line == "launch: sbatch does not take the job (invalid partition specified: gpu)"
        # The folder of logs stays: another submission may have written to it meanwhile.
        assert [path.name for path in Path("runs").iterdir()] == ["slurm"]


def test_without_submitit_or_sbatch_one_line_says_what_is_missing(
    command: Run, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "sbatch").unlink()
    monkeypatch.setattr(shutil, "which", lambda name: (programs / name).exists() or None)
    assert refused(command(*SLURM)).startswith("launch.kind: slurm needs sbatch,")
    monkeypatch.setitem(sys.modules, "submitit", None)
    line = "launch.kind: slurm needs submitit; pip install 'dgc_repro[slurm]'"
    assert refused(command(*SLURM)) == line


def test_settings_of_a_node_that_is_not_this_one_are_not_checked_here() -> None:
    asks = ("launch.device=cuda", "launch.gpus_per_node=8", "launch.workers=32", "launch.nodes=4")
    validate(configured("launch=slurm", *asks))


def test_a_command_that_runs_on_this_machine_is_not_submitted() -> None:
    with pytest.raises(UserError, match=r"^launch.kind: slurm is for single runs and --multirun"):
        run_config(configured(*SLURM))


NODE = """
import os, signal, sys
from pathlib import Path
from dgc_repro.launch import slurm

def again(number, frame):  # as submitit does it in the first task
    Path(sys.argv[1] + ".again").write_text(str(job.checkpoint()))
    sys.exit(255)

signal.signal(signal.SIGUSR2, again)
job = slurm.Job(sys.argv[1], "my.Model")
job()
"""
RANK = """
import os, signal, sys, time
from pathlib import Path
seen = Path(sys.argv[-1])
def stop(number, frame):
    time.sleep(0.5)  # a checkpoint
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GROUP_RANK", "GROUP_WORLD_SIZE")
seen.write_text(" ".join(os.environ[name] for name in names))
time.sleep(60)
"""


def test_a_task_starts_a_rank_that_stops_for_a_signal_to_all_processes_of_the_node(
    tmp_path: Path,
) -> None:
    """Slurm sends SIGUSR2 to the rank too."""
    seen = tmp_path / "seen"
    python = tmp_path / "python"  # in the place of the rank's
    (tmp_path / "rank.py").write_text(RANK)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "rank.py"} "$@"\n')
    python.chmod(0o755)
    place = {
        "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "120034", "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NTASKS": "12", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_PROCID": "9",
        "SLURM_JOB_NODELIST": "gpu[07-08,11]",
    }  # fmt: skip
    node = subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.executable = {str(python)!r}\n{NODE}", str(seen)],
        env=os.environ | PATHS | place,
        start_new_session=True,
    )
    wait_for(lambda: seen.exists() and bool(seen.read_text()), "the rank")
    assert seen.read_text() == "9 12 1 gpu07 2 3"
    os.killpg(node.pid, signal.SIGUSR2)
    assert node.wait(PATIENCE_SECONDS) == 255
    assert "DelayedSubmission" in Path(f"{seen}.again").read_text()


@pytest.mark.slow
def test_what_a_job_starts_trains_the_folder_by_its_config(
    command: Run, trained: list[Path]
) -> None:
    config = configured(*TINY)
    folder = run_folder(config)
    prepare(folder, config)
    assert command("submitted", str(folder)) == (0, [])
    assert trained == [folder]
    assert command("submitted", str(folder)) == (0, [])
    assert trained == [folder]  # done
    line = refused(command("submitted", "nowhere"))
    assert line.startswith("paths.runs: no nowhere/config.yaml;")


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_hydras_submitit_launcher_runs_a_sweep_on_this_machine() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dgc_repro", "--multirun", "hydra/launcher=submitit_local"),
            *(*TINY, "seed=0,1", "train.epochs=1"),
        ],
        env=os.environ | PATHS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in Path().glob("runs/*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]
