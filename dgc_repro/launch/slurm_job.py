"""What each task of a job of ``launch=slurm`` does: it starts one rank, and waits for it.

submitit calls `Job.checkpoint` in the first task for SIGUSR2 (near the time limit), and then queues the job
again. SIGTERM (preemption, requeue, scancel) comes from Slurm to the rank itself. Either way all ranks agree
on a step, write a checkpoint and end. A rank ignores SIGUSR2, which Slurm sends to it too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from dgc_repro.launch.parent import OWN_TARGETS, STARTED_BY

SUBMITTED = "submitted"
"""``python -m dgc_repro submitted <run folder>``, as a rank, trains what the folder's config says."""
STOPPED = 128 + signal.SIGTERM  # exit code of a rank that was stopped


@dataclass
class Job:
    """One run. ``own_targets``: the user's own components."""

    folder: str
    own_targets: str
    rank: int = 0  # its process id

    def __call__(self) -> None:
        """Run to the end as this task's rank. Ends the process where the run has not finished."""
        import submitit.helpers  # already imported on a node; not installed everywhere

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
        if ended is None or ended.si_status not in (STOPPED, signal.SIGTERM):  # finished, or failed
            return None
        return submitit.helpers.DelayedSubmission(Job(self.folder, self.own_targets))


def _ignore_usr2() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
