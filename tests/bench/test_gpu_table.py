"""The table of a GPU is made without one: its methods run on the CPU."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest
import torch

from dgc_repro.bench.launches import methods
from dgc_repro.bench.methods import gpu_rows, gpu_table
from dgc_repro.errors import UserError
from dgc_repro.paper import pool

SIZES = ["model.width=4", "model.blocks=[1,1,1,1]"]


def test_every_method_has_a_row() -> None:
    names = ("dense", "uniform", "topk", "dgc", "powersgd", "magnitude")
    cases = {name: methods()[name] for name in names}
    rows = gpu_rows(torch.device("cpu"), 1, cases, SIZES)
    assert [row["method"] for row in rows] == [*names]
    assert all(row["step_x"] > 0 for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_table_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="only: gpu needs a GPU"):
        gpu_table(quick=True)


def test_the_page_counts_the_trainings_of_each_commit_on_a_gpu(repository: Path) -> None:
    page = (repository / "docs" / "gpus.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([0-9a-f]{12})`, .* (\d+) trainings \|$", page, re.M)
    runs = pool.read(repository / "results" / "benchmark" / "small")
    on_gpu = [run.environment for run in runs if run.environment["device"] == "cuda"]
    found = collections.Counter(environment["commit"][:12] for environment in on_gpu)
    assert {commit: int(number) for commit, number in told} == found
