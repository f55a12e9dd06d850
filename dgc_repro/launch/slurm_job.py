"""What a job of ``launch=slurm`` does on each of its nodes: run torchrun's agent on a run folder.

SIGTERM (preemption, requeue, scancel) and SIGUSR2 (near the time limit) stop the run after a checkpoint.
Slurm sends them to all processes of a node, perhaps more than once, and a second signal would end torchrun's
agent before its ranks have written their checkpoint. So the agent and the ranks ignore both, and this process
sends the agent one SIGINT.

Imports the standard library alone at first: a signal may arrive at any time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dgc_repro.launch.parent import OWN_TARGETS, end_with_parent

SUBMITTED = "submitted"
"""``torchrun -m dgc_repro submitted <run folder>`` trains what the folder's config says."""
STOPPED = 75
"""Exit code of a run that a signal has stopped (EX_TEMPFAIL of sysexits.h)."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
FIRST_PORT, PORTS = 20_000, 10_000
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """One run. ``stop_seconds``: for the last checkpoint, before ranks are killed; ``own_targets``: the
    user's own components."""

    folder: str
    workers_of_node: int
    stop_seconds: int
    own_targets: str

    def __call__(self) -> None:
        """Run to the end on this node. Ends the process where the run has not finished."""
        received: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda got, _: received.append(got))
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # ranks set their own
        agent = subprocess.Popen(
            self.torchrun(os.environ),
            env=os.environ | threads | {OWN_TARGETS: self.own_targets},
            preexec_fn=_ignore_signals,  # noqa: PLW1509  # this process has one thread
        )
        is_stopping = False
        while agent.poll() is None:
            if received and not is_stopping:
                name = signal.Signals(received[0]).name
                print(f"{name}: stopping the run after a checkpoint", flush=True)
                agent.send_signal(signal.SIGINT)
                is_stopping = True
            time.sleep(POLL_SECONDS)
        if agent.returncode:
            sys.exit(STOPPED if received else 1)

    def torchrun(self, environment: Mapping[str, str]) -> list[str]:
        """The command of this node's agent. The first node's agent hosts the rendezvous."""
        import submitit  # already imported on a node; not installed everywhere

        job = submitit.JobEnvironment()
        port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
        return [
            *(sys.executable, "-m", __name__),
            *(f"--nnodes={job.num_nodes}", f"--node-rank={job.node}"),
            f"--nproc-per-node={self.workers_of_node}",
            *(f"--master-addr={job.hostnames[0]}", f"--master-port={port}"),
            *("--signals-to-handle=SIGINT", f"--shutdown-timeout={self.stop_seconds}"),
            *("-m", "dgc_repro", SUBMITTED, self.folder),
        ]


def _ignore_signals() -> None:
    """In the agent, before it starts; its ranks inherit it, and take SIGTERM once they train."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)


def agent() -> None:
    """torchrun, without its traceback when a signal stops it."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.run import main

    try:
        main()
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    agent()
