"""The table of a GPU is made without one: its comparison is of two ways to compute on the CPU."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from dgc_repro.bench import gpu
from dgc_repro.bench.launches import methods
from dgc_repro.errors import UserError

SIZES = ["model.width=4", "model.blocks=[1,1,1,1]"]


def test_every_method_has_a_row_and_the_same_device_the_same_bits() -> None:
    names = ("dense", "uniform", "topk", "dgc", "powersgd", "magnitude")
    cases = {name: methods()[name] for name in names}
    rows = gpu.rows(torch.device("cpu"), 1, SIZES, cases)
    assert [row["method"] for row in rows] == [*names]
    assert {row["bits"] for row in rows} == {"the CPU's bits"}
    assert all(row["step_x"] > 0 for row in rows)


def test_what_differs_is_told() -> None:
    a = [torch.tensor([1.0, -4.0]), torch.empty(0), torch.tensor([torch.nan, 0.0])]
    assert gpu.compared(a, [x.clone() for x in a]) == "the CPU's bits"
    b = [torch.tensor([1.0, -4.0]), torch.empty(0), torch.tensor([2.0, 1.0])]
    c = [torch.tensor([1.0, -4.0]), torch.empty(0), torch.tensor([2.0, 1.5])]
    assert gpu.compared(b, c) == "25 % of the values differ, by at most 1.2e-01 of the largest"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_table_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="only: gpu needs a GPU"):
        gpu.table(Namespace())
