"""A trace of a few steps by torch.profiler (``train.profile=true``).

Written into the run folder by each rank: ``trace-<rank>.json.gz`` (open it in chrome://tracing or
ui.perfetto.dev; the clock's spans are in it by name) and ``profile-<rank>.txt`` (operators by their
own time). A profiled run is a run of its own: its times hold the profiler's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dgc_repro.files import remove, replace
from dgc_repro.train.run import Run

SKIPPED_STEPS = 5  # kernels compile and buffers are made in the first ones
TRACED_STEPS = 5
TABLE_ROWS = 40


@contextmanager
def profiled(run: Run, folder: Path) -> Iterator[Callable[[], None]]:
    """Trace `TRACED_STEPS` steps of this process after `SKIPPED_STEPS`, fewer where the run is shorter.

    Gives a function to be called after each step; it does nothing unless ``train.profile`` is set.
    """
    left = run.num_steps - run.progress.step
    skipped = max(1, min(SKIPPED_STEPS, left - TRACED_STEPS))
    if not run.settings.profile or left <= skipped:
        yield lambda: None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if run.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def write(profiler: torch.profiler.profile) -> None:
        rank = run.workers.ranks[0]
        remove(trace := folder / f"trace-{rank}.json.gz")
        profiler.export_chrome_trace(str(trace))
        order = "self_cuda_time_total" if run.device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=order, row_limit=TABLE_ROWS)
        replace(folder / f"profile-{rank}.txt", table.encode())

    # One step of warm-up: the profiler's own first step is slow, and is thrown away.
    schedule = torch.profiler.schedule(
        wait=skipped - 1, warmup=1, active=min(TRACED_STEPS, left - skipped), repeat=1
    )
    run.world.clock.marks_trace = True
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=write,
        acc_events=True,  # torch 2.11 warns without it
    ) as profiler:
        yield profiler.step
