"""The rows of a selfcheck, and what the module of a row gives.

A row is a function ``checks(device)`` in a module of its own, which yields named cases. The function is the
same for both devices, so that all but the CUDA calls runs on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

Check = Callable[[], str]
"""One case: returns what was found, in a few words. Raises `Mismatch`, `Skip`, or anything else."""
Checks = Generator[tuple[str, Check], None, str]
"""All cases of a row by name, in an order that is the same in every process. Returns one line about all."""
HERE = "dgc_repro.selfcheck"
CPU, CUDA = "cpu", "cuda"
PER_GPU = 0  # as many ranks as GPUs, at most two


class Mismatch(Exception):
    """What was computed, counted or received differs from what was expected."""


class Skip(Exception):
    """This machine cannot run the case, or the whole row; the message says why."""


@dataclass(frozen=True)
class Row:
    """One line of the screen. ``module``: has ``checks(device)``; ``ranks``: processes that run each case
    together; ``seconds``: expected on two idle cores or on a GPU; ``env``: of its processes;
    ``shares_gpu``: there are fewer GPUs than ranks."""

    name: str
    module: str
    about: str
    device: str = CPU
    ranks: int = 1
    seconds: float = 10.0
    env: Mapping[str, str] = field(default_factory=dict)
    shares_gpu: bool = False


ROWS: tuple[Row, ...] = (
    Row(
        "machine",
        f"{HERE}.machine",
        "GPU, architecture, versions; whether torch has code for the GPU",
    ),
    Row(
        "methods-cpu",
        f"{HERE}.methods",
        "each line of the settings table, three steps: C kernels against tensor operations",
        seconds=15,
    ),
    Row(
        "exchange-cpu",
        f"{HERE}.exchanges",
        "two ranks of gloo against simulated workers: step, overlap, hook, FSDP2, scaler, NaN",
        ranks=2,
        seconds=12,
    ),
    Row(
        "counts-cpu",
        f"{HERE}.counts",
        "launches and host waits of a step, counted on fake CUDA tensors, against their targets",
        seconds=20,
    ),
    Row(
        "time-cpu",
        f"{HERE}.times",
        "a step with two ranks of gloo: plain DDP, torch's hooks, compressors; no time fails",
        ranks=2,
        seconds=12,
    ),
    Row(
        "compile-cpu",
        f"{HERE}.compiling",
        "kernels of the GPU compile for sm_70, sm_75, sm_80, sm_90; their registers and stack",
        seconds=15,
    ),
    Row(
        "kernels-cpu",
        f"{HERE}.kernels",
        "kernels of the GPU in Triton's interpreter, against the C kernels",
        seconds=20,
        env={"TRITON_INTERPRET": "1"},
    ),
    Row(
        "compile-cuda",
        f"{HERE}.compiling",
        "each kernel variant that is launched compiles for this GPU; its registers, stack, spills",
        CUDA,
        seconds=90,
    ),
    Row(
        "kernels-cuda",
        f"{HERE}.kernels",
        "all cases of the kernel tests on the GPU, against the C kernels",
        CUDA,
        seconds=60,
    ),
    Row(
        "methods-cuda",
        f"{HERE}.methods",
        "each line of the settings table, three steps: the GPU against the CPU",
        CUDA,
        seconds=60,
    ),
    Row(
        "counts-cuda",
        f"{HERE}.counts",
        "launches, copies and host waits of a step on the GPU, against those counted",
        CUDA,
        seconds=40,
    ),
    Row(
        "exchange-cuda",
        f"{HERE}.exchanges",
        "one rank of nccl against simulated workers",
        CUDA,
    ),
    Row(
        "ranks-cuda",
        f"{HERE}.exchanges",
        "two ranks of nccl against simulated workers, on two GPUs or sharing one",
        CUDA,
        ranks=2,
    ),
    Row(
        "time-cuda",
        f"{HERE}.times",
        "a step on the GPU, or two, with nccl: plain DDP, torch's hooks, compressors; no time fails",
        CUDA,
        ranks=PER_GPU,
    ),
)
"""Cheap rows first: what they say explains what fails later."""
