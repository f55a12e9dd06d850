"""Rows ``kernels``: the kernels of the GPU give the bits of the C kernels."""

from __future__ import annotations

import warnings
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from dgc_repro.kernel import native
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.selfcheck.rows import CUDA, Checks, Skip

if TYPE_CHECKING:
    from dgc_repro.selfcheck.kernel_cases import Case

INTERPRETER = (3, 9)
"""Older interpreters cannot loop to a number that a kernel has read."""


def checks(device: str) -> Checks:
    """Every case on a GPU; on the CPU, where Triton's interpreter runs them, the short ones."""
    if not on_gpu(()):
        raise Skip(
            "no Triton, or DGC_REPRO_COMPILE=0 switches it off: tensor operations serve a GPU"
        )
    if native.library() is None:
        raise Skip("no C compiler: there are no C kernels to compare with")
    version = metadata.version("triton")
    if device != CUDA and tuple(map(int, version.split(".")[:2])) < INTERPRETER:
        raise Skip(f"the interpreter of Triton {version} is too old")
    from dgc_repro.selfcheck.kernel_cases import CASES  # here: it needs Triton

    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of a NaN or of an integer that wraps
    chosen = [case for case in CASES if device == CUDA or case.is_short]
    for case in chosen:
        yield str(case), partial(_run, case, torch.device(device))
    how = "" if device == CUDA else f" (of {len(CASES)}), interpreted"
    return f"{len(chosen)} cases{how}: the bits of the C kernels"


def _run(case: Case, device: torch.device) -> str:
    case.run(device)
    return ""
