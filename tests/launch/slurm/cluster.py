"""A Slurm of two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd.

It shares nothing with a Slurm that may run here: own key, sockets, ports, state and configuration.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("127.0.0.2", "127.0.0.3")  # names that resolve without a change of /etc/hosts
START_SECONDS, STOP_SECONDS = 60, 15
CONF = """\
ClusterName=dgc-repro-test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=8
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
PlugStackConfig={folder}/plugstack.conf
{nodes}
PartitionName=test Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "needs root"


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [trial.getsockname()[1] for trial in trials]


def asked(place: dict[str, str], *command: str) -> list[str]:
    """The lines that a command of Slurm's prints."""
    done = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons, and end them at the end: the environment variables for Slurm's commands."""
    controller, *ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
        for name, port in zip(NODES, ports, strict=True)
    )
    (folder / "state").mkdir(parents=True)
    (folder / "plugstack.conf").touch()
    (folder / "slurm.conf").write_text(
        CONF.format(folder=folder, controller=controller, nodes=nodes, names=",".join(NODES))
    )
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    folder.chmod(0o755)
    place = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    daemons = [
        [
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"),
            *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"),
        ],
        ["slurmctld", "-D", "-f", place["SLURM_CONF"]],
        *(["slurmd", "-D", "-N", name, "-f", place["SLURM_CONF"]] for name in NODES),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in daemons:
            with (folder / f"{command[0]}-{len(started)}.out").open("wb") as out:
                started.append(
                    subprocess.Popen(command, env=os.environ | place, stdout=out, stderr=out)
                )
            if command[0] == "munged":
                wait_until((folder / "munge.socket").is_socket, started[0])
        sinfo = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_until(lambda: asked(place, *sinfo).count("idle") == len(NODES), *started)
        yield place
    finally:
        subprocess.run(["scancel", "--me"], env=os.environ | place, check=False)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not jobs(place), *started)
        for daemon in reversed(started):
            daemon.terminate()
        for daemon in started:
            try:
                daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in processes_with(f"SLURM_CONF={place['SLURM_CONF']}"):
            with contextlib.suppress(ProcessLookupError):  # steps outlive their slurmd
                os.kill(pid, signal.SIGKILL)


def processes_with(variable: str) -> list[int]:
    """Processes that have an environment variable, ``NAME=value``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def jobs(place: dict[str, str]) -> dict[str, str]:
    """States of the jobs that have not ended, by id."""
    lines = asked(place, "squeue", "--noheader", "--array", "--format=%i %T")
    return dict(line.split() for line in lines)


def wait_until(done: Callable[[], bool], *daemons: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while not done():
        assert all(daemon.poll() is None for daemon in daemons), "a daemon of Slurm has ended"
        assert time.monotonic() < end, f"Slurm did not start in {START_SECONDS} s"
        time.sleep(0.2)
