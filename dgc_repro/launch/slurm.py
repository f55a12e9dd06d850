"""``launch=slurm``: submit runs to Slurm through submitit, one job a run; several runs make one job array.

Configs are composed and validated here, and each run folder is made with its config. On the nodes each task
is a `Job`: a rank that trains what the folder says. It is the run of ``launch=local`` with as many workers,
with the same id and folder. submitit queues a job again that is near its time limit, and Slurm one that it
preempts or whose node fails; either continues from the run's last checkpoint.

A task imports this file before its rank starts, so that torch and the rest of launch/ are imported where they
are needed.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.files import replace, text
from dgc_repro.launch.ranks import (
    FAILED,
    FAILURE_FILE,
    FINISHED,
    OWN_TARGETS,
    STARTED_BY,
    STOPPED,
    SUBMITTED,
    RunFailed,
    RunStopped,
    held,
    raise_unless_finished,
)

JOB_FILE = "slurm_job"  # in a run folder: the id of its last job
LOOK_EVERY_SECONDS = 5.0
ENDED = "ended"
STOPPED_BY_SIGTERM = 128 + signal.SIGTERM  # exit code of a rank that was stopped
Jobs = Sequence[tuple[dict[str, Any], Sequence[str]]]


@dataclass
class Job:
    """One task of a job: it starts one rank of a run, and waits for it. ``own_targets``: the user's own
    components.

    submitit calls `checkpoint` in the first task for SIGUSR2 (near the time limit), and then queues the job
    again. SIGTERM (preemption, requeue, scancel) comes from Slurm to the rank itself. Either way all ranks
    agree on a step, write a checkpoint and end. A rank ignores SIGUSR2, which Slurm sends to it too."""

    folder: str
    own_targets: str
    rank: int = 0  # its process id

    def __call__(self) -> None:
        """Run to the end. Ends the process where the run has not finished."""
        import submitit.helpers  # not installed everywhere

        submitit.helpers.TorchDistributedEnvironment().export(
            set_cuda_visible_devices=False, overwrite=True
        )
        task = submitit.JobEnvironment()
        place = {"GROUP_RANK": str(task.node), "GROUP_WORLD_SIZE": str(task.num_nodes)}
        place |= {STARTED_BY: str(os.getpid()), OWN_TARGETS: self.own_targets}
        command = [sys.executable, "-m", "dgc_repro", SUBMITTED, self.folder]
        rank = subprocess.Popen(command, env=os.environ | place, preexec_fn=_ignore_usr2)  # noqa: PLW1509
        self.rank = rank.pid
        while (code := rank.poll()) is None:
            time.sleep(0.1)
        if code:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """Stop the run after a checkpoint; what the job does when it starts again."""
        import submitit.helpers

        print("SIGUSR2: stopping the run after a checkpoint", flush=True)
        os.kill(self.rank, signal.SIGTERM)
        # Not by Popen's methods: the signal may have interrupted one that holds their lock.
        ended = os.waitid(os.P_PID, self.rank, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_status not in (
            STOPPED_BY_SIGTERM,
            signal.SIGTERM,
        ):  # finished, or failed
            return None
        return submitit.helpers.DelayedSubmission(Job(self.folder, self.own_targets))


def _ignore_usr2() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def train(jobs: Jobs) -> tuple[list[Path], list[BaseException]]:
    """Submit validated configs, each with its overrides, unless they are finished or queued already: folders
    of finished runs. With ``launch.wait`` return when all have ended, with the errors of those that failed.

    Raises UserError where the jobs need more than one array, or where nothing can be submitted."""
    from dgc_repro.launch.mirror import finished_before
    from dgc_repro.launch.run import is_done, named

    launch = _common([config["launch"] for config, _ in jobs])
    executor = _executor(launch)
    runs: dict[Path, dict[str, Any]] = {}
    for config, given in jobs:
        run = _local(config)
        runs.setdefault(named(run, _own_overrides(given)), run)
    done = [folder for folder in runs if is_done(folder)]
    for folder in done:
        print(f"already done: {folder}", flush=True)
        finished_before(runs[folder], folder)
    states = _states()
    if states is None:  # a run might be submitted twice
        raise UserError(
            "launch: squeue does not answer, so that queued runs are not known; try again"
        )
    queued, new = {}, {}
    for folder in (folder for folder in runs if folder not in done):
        file = folder / JOB_FILE
        job = text(file).strip() if file.is_file() else ""
        if job in states:
            print(f"already submitted, job {job} ({states[job]}): {folder}", flush=True)
            queued[folder] = job
        else:
            new[folder] = runs[folder]
    if new:
        queued |= _submit(executor, new, launch)
    if not launch["wait"]:
        return done, []
    logs = Path(launch["logs"])
    follow(list(queued.values()), logs)
    failed: list[BaseException] = []
    for folder, job in queued.items():
        try:
            _raise_unless_done(folder, job, logs)
            done.append(folder)
        except (UserError, RunFailed, RunStopped) as error:
            if len(runs) > 1:  # the caller raises one of them
                print(f"failed: {folder}: {error}", flush=True)
            failed.append(error)
    return done, failed


def _local(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the run itself, without what Slurm is asked for."""
    from dgc_repro.launch.settings import SLURM_KEYS

    launch = {key: value for key, value in config["launch"].items() if key not in SLURM_KEYS}
    return {**config, "launch": {**launch, "kind": "local"}}


def _own_overrides(given: Sequence[str]) -> list[str]:
    """The overrides of the run itself, which name it as they do without Slurm."""
    from dgc_repro.launch.overrides import apart, key_of
    from dgc_repro.launch.settings import SLURM_KEYS

    others = apart(given, *(f"launch.{key}" for key in SLURM_KEYS))[1]
    return [override for override in others if key_of(override) != "launch"]


def parameters(launch: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of the batch script, by submitit's names."""
    workers = launch["workers"] // launch["nodes"]
    cpus = math.ceil((launch["cpus_per_task"] or workers) / workers)
    same = ("nodes", "gpus_per_node", "partition", "account", "qos", "setup", "array_parallelism")
    return {
        **{key: launch[key] for key in same},
        "job_name": name,
        "wckey": None,  # submitit's default may be one that the cluster does not have
        "ntasks_per_node": workers,
        "time": launch["time_minutes"],
        "signal_delay_s": launch["signal_seconds"],
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
    from dgc_repro.launch.settings import SLURM_KEYS

    for key in ("workers", *SLURM_KEYS):  # a task a worker
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
    from dgc_repro.launch.identity import outside
    from dgc_repro.launch.run import check_source, prepare, scale_line

    made = [folder for folder in runs if not folder.exists()]
    first, workers, nodes = next(iter(runs)), launch["workers"], launch["nodes"]
    try:
        for folder, run in runs.items():
            check_source(folder, run)
            prepare(folder, run)
            with held(folder):  # no other process writes it, and the errors of the last start go
                pass
        executor.update_parameters(
            **parameters(launch, "dgc_repro" if len(runs) > 1 else first.name)
        )
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
        size = f"{workers} worker{'s' * (workers != 1)} on {nodes} node{'s' * (nodes != 1)}"
        print(f"{size} (launch=slurm), {scale_line(runs[first])}", flush=True)
    for folder, job in zip(runs, ids, strict=True):
        replace(folder / JOB_FILE, f"{job}\n".encode())
        log = log_file(Path(launch["logs"]), job)
        print(f"submitted job {job}: {folder} (log: {log})", flush=True)
    return dict(zip(runs, ids, strict=True))


def _states() -> dict[str, str] | None:
    """States of this user's jobs that have not ended, by id; None where Slurm does not answer."""
    asked = subprocess.run(
        ["squeue", "--me", "--noheader", "--array", "--format=%i %T"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if asked.returncode else dict(map(str.split, asked.stdout.splitlines()))


def _raise_unless_done(folder: Path, job: str, logs: Path) -> None:
    """Raise what has ended a run whose job is no longer queued: UserError, RunStopped or RunFailed."""
    from dgc_repro.launch.run import is_done, summary_of

    if is_done(folder):
        return
    has_failed = (folder / FAILURE_FILE).is_file()
    stopped = not has_failed and summary_of(folder).get("status") == "stopped"
    raise_unless_finished(folder, [STOPPED if stopped else FAILED if has_failed else FINISHED])
    raise RunFailed(
        f"job {job} has ended before its run; the same command starts or continues it "
        f"(log: {log_file(logs, job)})"
    )
