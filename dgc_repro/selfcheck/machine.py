"""Row ``machine``: what GPU, torch, Triton and nccl there are, and whether they fit together."""

from __future__ import annotations

import platform
from functools import partial
from importlib import metadata
from importlib.util import find_spec

import torch

from dgc_repro.errors import UserError
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.devices import refuse_unknown_gpu
from dgc_repro.launch.environment import available_cores, cpu_model
from dgc_repro.selfcheck.rows import Checks, Mismatch


def checks(device: str) -> Checks:
    """Cases: versions, the C kernels, and each GPU."""
    yield "versions", versions
    yield "C kernels", c_kernels
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for gpu in range(count):
        yield f"GPU {gpu}", partial(of_gpu, gpu)
    gpus = f"{count} x {torch.cuda.get_device_name()}" if count else "no CUDA device"
    return f"{gpus}; {versions()}"


def versions() -> str:
    """Python, torch with its CUDA and nccl, and Triton."""
    cuda = torch.version.cuda
    built = f"CUDA {cuda}" if cuda else "no CUDA in this build"
    nccl = "no nccl"
    if torch.distributed.is_nccl_available():
        found = torch.cuda.nccl.version()
        nccl = "nccl " + ".".join(map(str, found if isinstance(found, tuple) else (found,)))
    triton = "no Triton"
    if find_spec("triton"):
        triton = f"Triton {metadata.version('triton')}"
        triton += "" if on_gpu(()) else " (switched off by DGC_REPRO_COMPILE)"
    return (
        f"torch {torch.__version__} ({built}), {triton}, {nccl}, Python {platform.python_version()}"
    )


def c_kernels() -> str:
    """Whether the CPU's kernels were compiled. Without a C compiler the values are the same."""
    if native.library() is None:
        return "no C compiler: tensor operations serve the CPU"
    return f"compiled; {cpu_model()}, {available_cores()} cores"


def of_gpu(gpu: int) -> str:
    """Whether torch has code for a GPU, and computes on it."""
    of = torch.cuda.get_device_properties(gpu)
    name = f"{of.name}, sm_{of.major}{of.minor}, {of.total_memory / 2**30:.0f} GiB"
    try:
        refuse_unknown_gpu(gpu)
    except UserError as error:
        raise Mismatch(str(error)) from error
    there = torch.arange(1000, device=torch.device("cuda", gpu), dtype=torch.float64)
    if int(there.sum()) != 499500:
        raise Mismatch(f"{name}: the sum of 0 to 999 is {int(there.sum())}")
    return name
