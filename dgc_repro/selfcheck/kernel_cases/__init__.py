"""The cases of the GPU kernels: on a device, every kernel gives the bits of the C kernel.

With ``device="cpu"`` Triton's interpreter runs the kernels; TRITON_INTERPRET=1 must be set before Triton is
imported. The tests run all cases so (tests/kernel/gpu_interpreted.py), the row ``kernels-cpu`` some of them.
With ``device="cuda"`` they run on the GPU.
"""

from dgc_repro.selfcheck.kernel_cases import sparse, whole
from dgc_repro.selfcheck.kernel_cases.base import CASES, Case

__all__ = ["CASES", "Case", "sparse", "whole"]
