"""Run by Triton's interpreter, every GPU kernel gives the bits of the C kernel.

test_gpu.py runs this file in a process of its own: Triton reads TRITON_INTERPRET when it is imported. The
cases are those that `python -m dgc_repro selfcheck` runs on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dgc_repro import ClipLocal, Dense
from dgc_repro.selfcheck.kernel_cases import CASES, Case

# numpy's, of a NaN or of an integer that wraps
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def promises_about_addresses_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU traps, or reads other values, where `tl.multiple_of` promises what is not so."""
    from triton.runtime.interpreter import TensorHandle

    def checked(pointers: Any, name: str, multiples: list[int]) -> None:
        assert name == "tt.divisibility"
        rows = pointers.data.reshape(-1, pointers.data.shape[-1]).astype(np.int64)
        size = pointers.get_element_ty().primitive_bitwidth // 8
        assert multiples[-1] == 4 * size
        assert not (rows[:, 0] % multiples[-1]).any()
        assert (np.diff(rows) == size).all()

    monkeypatch.setattr(TensorHandle, "set_attr", checked)


def each(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=str)


def is_sparse(case: Case) -> bool:
    return case.function.__module__.endswith(".sparse")


@each([case for case in CASES if is_sparse(case)])
def test_a_sparse_kernel_gives_the_bits_of_the_c_kernel(case: Case) -> None:
    case.run(torch.device("cpu"))


@each([case for case in CASES if not is_sparse(case)])
def test_another_kernel_gives_the_bits_of_the_c_kernel(case: Case) -> None:
    case.run(torch.device("cpu"))


@pytest.mark.parametrize("norm", [0.5, 1.0, 2.0, math.nan, math.inf])
def test_the_factor_of_a_norm_on_the_gpu_is_that_of_a_number(norm: float) -> None:
    clip = ClipLocal(Dense(), 1.0)
    factor = clip.factor(torch.tensor(norm, dtype=torch.float64), 2)
    assert torch.equal(factor, torch.tensor(clip.factor(norm, 2)))
