"""``launch=slurm``: submit runs to Slurm through submitit, one job a run; several runs make one job array.

Configs are composed and validated here, and each run folder is made with its config. On the nodes each task
is a rank that trains what the folder says (launch/slurm_job.py): the run of ``launch=local`` with as many
workers, with the same id and folder.

submitit queues a job again that is near its time limit, and Slurm one that it preempts or whose node fails.
Either continues from the run's last checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import outside
from dgc_repro.launch.local import (
    FAILURE_FILE,
    RunFailed,
    RunStopped,
    held,
    raise_unless_finished,
)
from dgc_repro.launch.mirror import finished_before
from dgc_repro.launch.overrides import apart, key_of
from dgc_repro.launch.sections import SLURM, SLURM_KEYS
from dgc_repro.launch.single import (
    check_source,
    is_done,
    named,
    prepare,
    scale_line,
    summary_of,
)
from dgc_repro.launch.slurm_job import Job

JOB_FILE = "slurm_job"  # in a run folder: the id of its last job
LOOK_EVERY_SECONDS = 5.0
ENDED = "ended"
Jobs = Sequence[tuple[dict[str, Any], Sequence[str]]]


def train(jobs: Jobs) -> tuple[list[Path], list[BaseException]]:
    """Submit validated configs, each with its overrides, unless they are finished or queued already: folders
    of finished runs. With ``launch.wait`` return when all have ended, with the errors of those that failed.

    Raises UserError where the jobs need more than one array, or where nothing can be submitted."""
    launch = _common([config["launch"] for config, _ in jobs])
    executor = _executor(launch)
    runs: dict[Path, dict[str, Any]] = {}
    for config, given in jobs:
        run = of_run(config)
        runs.setdefault(named(run, own_overrides(given)), run)
    done = [folder for folder in runs if is_done(folder)]
    for folder in done:
        print(f"already done: {folder}", flush=True)
        finished_before(runs[folder], folder)
    states = _states()
    if states is None:  # a run might be submitted twice
        raise UserError(
            "launch: squeue does not answer, so that queued runs are not known; try again"
        )
    last = {folder: _last_job(folder) for folder in runs if folder not in done}
    queued = {folder: job for folder, job in last.items() if job in states}
    for folder, job in queued.items():
        print(f"already submitted, job {job} ({states[job]}): {folder}", flush=True)
    if new := {folder: runs[folder] for folder in last if folder not in queued}:
        queued |= _submit(executor, new, launch)
    if not launch["wait"]:
        return done, []
    follow(list(queued.values()), Path(launch["logs"]))
    failed: list[BaseException] = []
    for folder, job in queued.items():
        try:
            _raise_unless_done(folder, job, Path(launch["logs"]))
            done.append(folder)
        except (UserError, RunFailed, RunStopped) as error:
            if len(runs) > 1:  # the caller raises one of them
                print(f"failed: {folder}: {error}", flush=True)
            failed.append(error)
    return done, failed


def of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the run itself, without what Slurm is asked for."""
    launch = {key: value for key, value in config["launch"].items() if key not in SLURM_KEYS}
    return {**config, "launch": {**launch, "kind": "local"}}


def own_overrides(given: Sequence[str]) -> list[str]:
    """The overrides of the run itself, which name it as they do without Slurm."""
    others = apart(given, *(f"launch.{key}" for key in SLURM_KEYS))[1]
    return [override for override in others if key_of(override) != "launch"]


def parameters(launch: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of the batch script, by submitit's names."""
    workers = launch["workers"] // launch["nodes"]
    cpus = math.ceil((launch["cpus_per_task"] or workers) / workers)
    same = ("nodes", "gpus_per_node", "partition", "account", "qos", "setup")
    return {
        **{key: launch[key] for key in same},
        "job_name": name,
        "wckey": None,  # submitit's default may be one that the cluster does not have
        "ntasks_per_node": workers,
        "time": launch["time_minutes"],
        "signal_delay_s": launch["signal_seconds"],
        "array_parallelism": launch["array_parallelism"],
        "stderr_to_stdout": True,
        "cpus_per_task": cpus,
        # srun does not take over sbatch's. The workers of a node share its cores, as with other launchers.
        "srun_args": [f"--cpus-per-task={cpus}", "--cpu-bind=none"],
        "additional_parameters": {
            ("requeue" if launch["requeues"] else "no-requeue"): True,
            **(launch["sbatch"] or {}),
        },
    }


def follow(jobs: Sequence[str], logs: Path) -> None:
    """Print states until all jobs have ended; of one job alone its log too."""
    said: dict[str, str] = {}
    place = 0
    try:
        while True:
            states = _states()
            now = said if states is None else {job: states.get(job, ENDED) for job in jobs}
            for job, state in now.items():
                if state != said.get(job):
                    print(f"job {job}: {state}", flush=True)
            said = now
            if len(jobs) == 1 and (log := log_file(logs, jobs[0])).is_file():
                with log.open(encoding="utf-8", errors="replace") as file:
                    file.seek(place)
                    print(file.read(), end="", flush=True)
                    place = file.tell()
            if all(said.get(job) == ENDED for job in jobs):
                return
            time.sleep(LOOK_EVERY_SECONDS)
    except KeyboardInterrupt:
        print(f"no longer waiting; the jobs go on (scancel {' '.join(jobs)} ends them)", flush=True)
        sys.exit(128 + signal.SIGINT)


def log_file(logs: Path, job: str) -> Path:
    """What a job's rank 0 prints."""
    return logs / f"{job}_0_log.out"


def _common(launches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The launch settings of all jobs. Raises UserError where they ask Slurm for different things."""
    for key in SLURM_KEYS:
        values = list(dict.fromkeys(str(launch[key]) for launch in launches))
        if len(values) > 1:
            raise UserError(
                f"launch.{key}: the runs of a sweep are one job array with one {key}, got "
                f"{', '.join(values)}; make a sweep for each"
            )
    return launches[0]


def _executor(launch: Mapping[str, Any]) -> Any:
    """submitit's executor. Raises UserError where there is no submitit or no Slurm."""
    try:
        import submitit
    except ImportError as error:
        raise UserError(
            "launch.kind: slurm needs submitit; pip install 'dgc_repro[slurm]'"
        ) from error
    for program in ("sbatch", "srun", "squeue"):
        if shutil.which(program) is None:
            raise UserError(
                f"launch.kind: slurm needs {program}, which is not on this machine; submit from a login node "
                "of the cluster, or use launch=local"
            )
    return submitit.SlurmExecutor(launch["logs"], launch["requeues"], python=launch["python"])


def _submit(
    executor: Any, runs: Mapping[Path, dict[str, Any]], launch: Mapping[str, Any]
) -> dict[Path, str]:
    """Make the run folders and submit one job, or one array; the job of each folder. Raises UserError, and
    then leaves no new run folder."""
    made = [folder for folder in runs if not folder.exists()]
    name = "dgc_repro" if len(runs) > 1 else next(iter(runs)).name
    try:
        for folder, run in runs.items():
            check_source(folder, run)
            prepare(folder, run)
            with held(folder):  # no other process writes it, and the errors of the last start go
                pass
        executor.update_parameters(**parameters(launch, name))
        jobs = [Job(str(folder.absolute()), " ".join(outside(run))) for folder, run in runs.items()]
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what sbatch said
            ids = [str(job.job_id) for job in executor.submit_array(jobs)]
    except Exception as error:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, UserError):
            raise
        said = re.findall(r"^sbatch: error: (.*)", str(error), re.M)
        why = "; ".join(said) or " ".join(str(error).split())[:300]
        raise UserError(f"launch: sbatch does not take the job ({why})") from error
    if len(runs) == 1:
        print(f"{_size(launch)}, {scale_line(next(iter(runs.values())))}", flush=True)
    for folder, job in zip(runs, ids, strict=True):
        (folder / JOB_FILE).write_text(f"{job}\n", encoding="utf-8")
        print(
            f"submitted job {job}: {folder} (log: {log_file(Path(launch['logs']), job)})",
            flush=True,
        )
    return dict(zip(runs, ids, strict=True))


def _size(launch: Mapping[str, Any]) -> str:
    workers, nodes = launch["workers"], launch["nodes"]
    return f"{workers} worker{'s' * (workers != 1)} on {nodes} node{'s' * (nodes != 1)} (launch={SLURM})"


def _states() -> dict[str, str] | None:
    """States of this user's jobs that have not ended, by id; None where Slurm does not answer."""
    asked = subprocess.run(
        ["squeue", "--me", "--noheader", "--array", "--format=%i %T"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if asked.returncode else dict(map(str.split, asked.stdout.splitlines()))


def _last_job(folder: Path) -> str:
    """The id of the job that was last submitted for a run folder; empty where there was none."""
    path = folder / JOB_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _raise_unless_done(folder: Path, job: str, logs: Path) -> None:
    """Raise what has ended a run whose job is no longer queued: UserError, RunStopped or RunFailed."""
    if is_done(folder):
        return
    has_failed = (folder / FAILURE_FILE).is_file()
    stopped = not has_failed and summary_of(folder).get("status") == "stopped"
    raise_unless_finished(folder, signal.SIGTERM if stopped else None, failed=has_failed)
    raise RunFailed(
        f"job {job} has ended before its run; the same command starts or continues it "
        f"(log: {log_file(logs, job)})"
    )
