"""The device and backend of a run, and GPUs that this torch could not use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dgc_repro.errors import UserError
from dgc_repro.launch.environment import workers_here


def choose_device(config: Mapping[str, Any]) -> tuple[str, str]:
    """(device type, backend). Raises UserError when a GPU is asked for where there is none."""
    launch = config["launch"]
    device, backend = launch["device"], launch["backend"]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and not gpus:
        raise UserError(
            "launch.device: cuda asked for, torch sees no GPU here; use launch.device=cpu"
        )
    needed = 1 if launch["kind"] == "simulated" else workers_here(launch["workers"])
    if device == "auto":
        device = "cuda" if gpus >= needed else "cpu"
    if device == "cuda":
        for gpu in range(min(gpus, needed)):
            refuse_unknown_gpu(gpu)
            if config.get("train", {}).get("precision") == "bf16":
                refuse_emulated_bf16(gpu)
    own_gpus = device == "cuda" and gpus >= needed
    if backend == "nccl" and not own_gpus:
        raise UserError(
            f"launch.backend: nccl needs a GPU for each of {needed} workers, there are {gpus}; use gloo"
        )
    return device, ("nccl" if own_gpus else "gloo") if backend == "auto" else backend


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


def refuse_emulated_bf16(gpu: int) -> None:
    """Raise UserError where torch would emulate bfloat16, as before sm_80; float32 is faster there."""
    major, minor = torch.cuda.get_device_capability(gpu)
    if major < 8 and torch.version.hip is None:
        raise UserError(
            f"train.precision: GPU {gpu} ({torch.cuda.get_device_name(gpu)}, sm_{major}{minor}) computes no "
            "bfloat16 itself, which begins with sm_80, and torch would emulate it slowly; use "
            "train.precision=fp32"
        )


def emulated_bf16(precision: str, device: str) -> str | None:
    """Return a warning for bfloat16 on a CPU that has no instructions for it (on x86 AVX512-BF16 or AMX);
    None elsewhere, and where torch does not list what the CPU can do."""
    if precision != "bf16" or device != "cpu":
        return None
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    able = [has for name, has in found.items() if name.endswith("bf16")]
    if not able or any(able):
        return None
    return (
        "train.precision: this CPU computes no bfloat16 itself, and torch emulates it: training can be 100 "
        "times slower; use train.precision=fp32, or a CPU with AVX512-BF16 or AMX"
    )
