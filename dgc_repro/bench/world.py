"""A function that a few live ranks call together: gloo workers on loopback, or on the links of a lab.

`on_ranks` starts the ranks as those of a run (launch/ranks.py). Each calls the function
with the same arguments, and rank 0's result comes back. Inside, ranks use torch.distributed.
"""

from __future__ import annotations

import datetime
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dgc_repro.kernel import native
from dgc_repro.launch.rank_process import end_with_starter, leave
from dgc_repro.launch.ranks import FAILURE_FILE, FINISHED, Ranks, leave_line
from dgc_repro.launch.rendezvous import Rendezvous, hosted_store, use_loopback
from dgc_repro.network.lab import Lab

PAIR = 2
JOB, ANSWER = "job.pickle", "answer.pickle"


class RanksFailed(RuntimeError):
    """A rank raised or was killed; the message says which, and why."""


def on_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = PAIR,
    lab: Lab | None = None,
    timeout_seconds: float = 600.0,
    backend: str = "gloo",
) -> Any:
    """What rank 0 of the workers returns.

    ``function``: found by its name in its module; ``lab``: the links, by default loopback;
    ``timeout_seconds``: of a collective; ``backend``: nccl gives rank i the i-th GPU. Raises RanksFailed."""
    with tempfile.TemporaryDirectory(prefix="dgc_repro_bench_") as name:
        folder = Path(name)
        job = (function, arguments, timeout_seconds, backend)
        (folder / JOB).write_bytes(pickle.dumps(job))
        with (folder / "log").open("w") as log:
            ranks = Ranks(folder, log, workers, None if lab else hosted_store(), lab)
            own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
            ranks.run([sys.executable, "-m", "dgc_repro.bench.world", name], os.environ | own)
        if ranks.stopped_by is not None:
            raise KeyboardInterrupt
        if ranks.failed is None:
            return pickle.loads((folder / ANSWER).read_bytes())
        reason = ranks.ended()
        if "was killed" not in reason and (folder / FAILURE_FILE).is_file():
            reason = (folder / FAILURE_FILE).read_text(encoding="utf-8").strip()
    raise RanksFailed(reason)


def everyone(value: Any) -> list[Any]:
    """This value of every rank, in rank order; outside a world that of this process."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def is_first() -> bool:
    """Whether this is rank 0, or no rank of a world."""
    return not dist.is_initialized() or dist.get_rank() == 0


def together() -> None:
    """Wait for all ranks; outside a world for nothing."""
    if dist.is_initialized():
        dist.barrier()


def main() -> None:
    """``python -m dgc_repro.bench.world <folder>``: one rank."""
    end_with_starter()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    function, arguments, timeout_seconds, backend = pickle.loads((folder / JOB).read_bytes())
    try:
        torch.set_num_threads(1)
        native.library()  # built now if it is not in the cache
        if backend == "nccl":
            torch.cuda.set_device(rank)
        use_loopback()  # but in a lab, which names its interface
        rendezvous = Rendezvous()
        dist.init_process_group(
            backend,
            store=PrefixStore("world", rendezvous.store),
            rank=rank,
            world_size=rendezvous.size,
            timeout=datetime.timedelta(seconds=timeout_seconds),
        )
        answer = function(*arguments)
        if rank == 0:
            (folder / ANSWER).write_bytes(pickle.dumps(answer))
        dist.barrier()  # a rank that ends early takes its connections with it
    except BaseException as error:
        traceback.print_exc()
        first = next(iter(str(error).splitlines()), "")
        leave_line(folder / FAILURE_FILE, f"rank {rank} {type(error).__name__}: {first}")
        leave(1)
    leave(FINISHED)


if __name__ == "__main__":
    main()
