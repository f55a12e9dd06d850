"""What a number was measured with, which is written beside it. torch is imported where it is needed."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgc_repro import __version__
from dgc_repro.names import git

if TYPE_CHECKING:
    import torch

RUNS_AT_ONCE = "DGC_REPRO_RUNS_AT_ONCE"
"""Runs that a sweep has on this machine at a time, where there are several (launch/sweep.py)."""
CODE = ":(top) :(top,exclude)results"


def available_cores() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_here(workers: int) -> int:
    """Of so many workers, those on this machine: torchrun says it to its ranks."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(said), workers) if said.isdecimal() and int(said) else workers


def threads_of_worker(launch: Mapping[str, Any]) -> int:
    """Threads of a worker: ``launch.threads``, or its share of the cores. Runs at the same time share the
    cores too. Simulated workers take turns with as many: their steps are too small to gain by more."""
    at_once = workers_here(launch["workers"]) * int(os.environ.get(RUNS_AT_ONCE, "1"))
    return int(launch["threads"] or max(1, available_cores() // at_once))


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Have torch compute with so many threads here, and as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _proc_field(file: str, name: str) -> str:
    """The value of ``name: value`` in a file of /proc (Linux); empty where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", file).read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    return _proc_field("cpuinfo", "model name") or platform.processor() or platform.machine()


def busy_cores(seconds: float = 0.5) -> float:
    """Cores at work on this machine while this process sleeps: other work. NaN where Linux does not
    say. (A load average of the last minute would hold what this process has done before.)"""
    before = _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - before) / seconds


def _busy_seconds() -> float:
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return math.nan
    user, nice, system, _idle, _iowait, *rest = (int(field) for field in fields[:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def available_bytes() -> int | None:
    """Memory that programs may still take, None where the system does not say."""
    text = _proc_field("meminfo", "MemAvailable")
    return int(text.split()[0]) * 1024 if text else None


def shortage(needed: float, device: torch.device | None = None) -> str | None:
    """``needed`` bytes and those that are available, in words; None where they fit, or the system does not
    say. ``device``: a GPU whose memory counts; None: this machine's."""
    available = available_bytes()
    if device is not None and device.type == "cuda":
        import torch

        # A GPU may be pretended, to count what a step asks of it.
        available = torch.cuda.mem_get_info(device)[0] if torch.cuda.is_available() else None
    if available is None or needed <= available:
        return None
    return f"{needed / 1e9:.3g} GB ({available / 1e9:.1f} GB are available)"


def torchvision_version() -> str | None:
    """Without an import: a run of text needs no torchvision, which may not fit torch."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("torchvision")
    return None


def code_has_changed() -> bool:
    """Whether tracked files differ from the commit; published results are no change of the code."""
    return bool(git(f"status --porcelain --untracked-files=no -- {CODE}"))


def kernels(device: torch.device) -> str:
    """What compresses on a device: ``C``, ``Triton`` or ``tensor operations``."""
    from dgc_repro.kernel import native
    from dgc_repro.kernel.batch import on_gpu

    compiled = on_gpu(()) if device.type == "cuda" else native.library() is not None
    return {"cpu": "C", "cuda": "Triton"}[device.type] if compiled else "tensor operations"


def describe(device: torch.device, backend: str, world_size: int, data: str) -> dict[str, Any]:
    """Hardware, software, code and data of a run."""
    import torch

    hardware = f"{cpu_model()}, {available_cores()} cores"
    if device.type == "cuda":
        hardware = f"{torch.cuda.get_device_name(device)}, {hardware}"
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")  # torchrun's agents
    if nodes != "1":
        hardware = f"{nodes} nodes, the first: {hardware}"
    return {
        "hardware": hardware,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision_version(),
        "dgc_repro": __version__,
        "commit": git("rev-parse HEAD"),
        "dirty": code_has_changed(),
        "vectors": torch.backends.cpu.get_cpu_capability(),  # rounding differs between AVX2 and AVX512
        "kernels": kernels(device),
        "device": device.type,
        "backend": backend,
        "world_size": world_size,
        "threads_per_worker": torch.get_num_threads(),
        "data": data,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
