"""The device and backend of a run, and GPUs that this torch could not use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dgc_repro.errors import UserError
from dgc_repro.launch.environment import workers_here
from dgc_repro.launch.settings import NETLAB

CPU_SCALES = ("quick", "small")
"""Scales that are made for CPU cores: where GPUs are fewer than workers, their runs stay on the CPU."""
DRIVERS_GPUS = Path(
    "/proc/driver/nvidia/gpus"
)  # NVIDIA's driver lists a folder for each GPU (Linux)


class Place(NamedTuple):
    """Where the workers of a run compute. ``note``: a line for the user where a GPU stays idle, or empty."""

    device: str
    backend: str
    note: str = ""


def choose_device(config: Mapping[str, Any], has_own: bool | None = None) -> Place:
    """Return the type of device and the backend of a run on this machine.

    ``has_own``: whether each worker of the run has a GPU of its own, where ranks have compared theirs
    (`Rendezvous.has_own_gpus`). None: where this process sees as many GPUs as there are workers here.
    Raises UserError where a GPU that is asked for cannot be used, and where ``launch.device=auto`` would
    leave a GPU idle without being asked to.
    """
    launch = config["launch"]
    device, backend = launch["device"], launch["backend"]
    gpus = visible_gpus()
    if device == "cuda" and not gpus:
        raise UserError(
            "launch.device: cuda asked for, torch sees no GPU here; use launch.device=cpu"
        )
    needed = 1 if launch["kind"] == "simulated" else workers_here(launch["workers"])
    if has_own is None:
        has_own = gpus >= needed
    note = ""
    if device == "auto":
        if not gpus:
            device, note = "cpu", unusable_gpu()
        elif has_own:
            device = "cuda"
        else:
            device, note = "cpu", idle_gpus(config, gpus, needed)
    if device == "cuda":
        for gpu in range(min(gpus, needed)):
            refuse_unknown_gpu(gpu)
            if config.get("train", {}).get("precision") == "bf16" and emulates_bf16(gpu):
                major, minor = torch.cuda.get_device_capability(gpu)
                raise UserError(
                    f"train.precision: GPU {gpu} ({torch.cuda.get_device_name(gpu)}, sm_{major}{minor}) "
                    "computes no bfloat16 itself, which begins with sm_80, and torch would emulate it "
                    "slowly; use train.precision=half, which is fp16 there, or fp32"
                )
    own_gpus = device == "cuda" and has_own
    if backend == "nccl" and not own_gpus:
        raise UserError(
            f"launch.backend: nccl needs a GPU for each of {needed} workers, there are {gpus}; use gloo"
        )
    return Place(device, ("nccl" if own_gpus else "gloo") if backend == "auto" else backend, note)


def visible_gpus() -> int:
    """Return the number of GPUs that torch sees in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def few_gpus(gpus: int, workers: int) -> str:
    """Say how many GPUs there are for how many workers."""
    return f"{gpus} GPU{'s' * (gpus != 1)} here for {workers} workers"


def idle_gpus(config: Mapping[str, Any], gpus: int, workers: int) -> str:
    """Return the note for a run that stays on CPU cores beside ``gpus`` that do not suffice for its
    ``workers``. Raises UserError where its scale is not made for CPU cores: there it would take days in place
    of hours."""
    few, scale = few_gpus(gpus, workers), config.get("scale", {}).get("name")
    if gpus >= workers:
        raise UserError(
            f"launch.device: {few}, and several ranks would take one GPU, or parts of it; set LOCAL_RANK, or "
            "CUDA_VISIBLE_DEVICES, for each rank as torchrun does, or use launch.device=cpu"
        )
    if config["launch"]["kind"] == NETLAB:
        other = "launch.device=cuda lets the workers of the lab share a GPU"
    else:
        other = "launch=simulated trains all workers on one GPU in one process"
        if "TORCHELASTIC_RUN_ID" in os.environ:
            other += ", without torchrun"
    if scale in CPU_SCALES:
        return (
            f"launch.device: {few}; scale={scale} is made for CPU cores and trains there; {other}"
        )
    raise UserError(
        f"launch.device: {few}, and each worker needs a GPU of its own; {other}; launch.device=cpu trains on "
        "CPU cores"
    )


def simulates_on_gpu(config: Mapping[str, Any]) -> bool:
    """Return whether a reproduction trains this run with simulated workers, because ``launch=local`` would
    leave the GPUs of this machine idle."""
    launch, gpus = config.get("launch", {}), visible_gpus()
    return (
        (launch.get("kind"), launch.get("device")) == ("local", "auto")
        and 0 < gpus < workers_here(launch["workers"])
        and config["scale"]["name"] not in CPU_SCALES
    )


def unusable_gpu() -> str:
    """Return the note for a machine whose GPU torch cannot use; empty where there is none, or it is hidden
    on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    if hidden or not DRIVERS_GPUS.is_dir() or not any(DRIVERS_GPUS.iterdir()):
        return ""
    return (
        f"launch.device: this machine has an NVIDIA GPU that torch {torch.__version__} cannot use, so that "
        "the run trains on CPU cores; install a torch build with CUDA for this driver (docs/gpus.md), or "
        "say launch.device=cpu"
    )


def refuse_unknown_gpu(gpu: int) -> None:
    """Raise UserError where this torch has no code for a GPU: its first kernel would fail.

    Code for sm_80 runs on sm_86 (same major version, a minor version as high); compute_80 is compiled at
    start for all that came later."""
    major, minor = torch.cuda.get_device_capability(gpu)
    known = torch.cuda.get_arch_list()
    for name in known:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        its_major, its_minor = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and its_major == major and its_minor <= minor:
            return
        if kind == "compute" and (its_major, its_minor) <= (major, minor):
            return
    raise UserError(
        f"launch.device: torch {torch.__version__} has no code for GPU {gpu} "
        f"({torch.cuda.get_device_name(gpu)}, sm_{major}{minor}; it has {', '.join(known)}); install a torch "
        "build for this GPU (docs/gpus.md), or use launch.device=cpu"
    )


def emulates_bf16(gpu: int) -> bool:
    """Return whether torch would emulate bfloat16 on a GPU, as before sm_80; float32 is faster there."""
    return torch.cuda.get_device_capability(gpu)[0] < 8 and torch.version.hip is None


def computed_precision(precision: str, device: torch.device) -> str:
    """Return the precision in which a device computes: ``half`` is bf16, and fp16 on a GPU that would emulate
    bf16 (T4, V100). A CPU that would emulate bf16 would emulate fp16 too."""
    if precision != "half":
        return precision
    return "fp16" if device.type == "cuda" and emulates_bf16(device.index or 0) else "bf16"


def emulated_bf16(precision: str, device: str) -> str | None:
    """Return a warning for bfloat16 on a CPU that has no instructions for it (on x86 AVX512-BF16 or AMX);
    None elsewhere, and where torch does not list what the CPU can do."""
    if precision not in ("bf16", "half") or device != "cpu":
        return None
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    able = [has for name, has in found.items() if name.endswith("bf16")]
    if not able or any(able):
        return None
    return (
        "train.precision: this CPU computes no bfloat16 itself, and torch emulates it: training can be 100 "
        "times slower; use train.precision=fp32, or a CPU with AVX512-BF16 or AMX"
    )
