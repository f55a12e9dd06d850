"""The table of a GPU is made without one: its methods run on the CPU."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.bench import gpu
from dgc_repro.bench.launches import methods
from dgc_repro.errors import UserError

SIZES = ["model.width=4", "model.blocks=[1,1,1,1]"]


def test_every_method_has_a_row() -> None:
    names = ("dense", "uniform", "topk", "dgc", "powersgd", "magnitude")
    rows = gpu.rows(torch.device("cpu"), 1, SIZES, {name: methods()[name] for name in names})
    assert [row["method"] for row in rows] == [*names]
    assert all(row["step_x"] > 0 for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_table_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="only: gpu needs a GPU"):
        gpu.table(quick=True)
