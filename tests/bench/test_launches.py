"""What a GPU would do, without one: a step is counted on fake tensors, the table is made on the CPU."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dgc_repro.bench import launches
from dgc_repro.bench.counting import CUDA, Counting, fake_workers
from dgc_repro.bench.methods import gpu_rows, gpu_table
from dgc_repro.errors import UserError
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
from dgc_repro.paper import pool
from dgc_repro.policy.interface import Plan


def test_operations_are_launches_and_reads_are_syncs() -> None:
    with Counting() as counting:
        x = torch.empty(1000, device=CUDA)
        y = torch.add(x, 1)
        y.view(10, 100)[2:].mul_(2)
        assert (counting.launches, counting.syncs) == (2, 0)
        assert counting.bytes_touched == 4 * (1000 + 1000) + 4 * (800 + 800)
        assert bool((x > 0).all())
        assert (counting.launches, counting.syncs) == (4, 1)
        torch.cuda.synchronize()
        sent = torch.tensor([3, 4])
        sent.to(CUDA, non_blocking=True)
        assert (counting.launches, counting.syncs) == (5, 2)
        assert sent.tolist() == [3, 4]
        sent.to(CUDA)
        assert (counting.launches, counting.syncs) == (6, 3)
        counting.clear()
        torch._foreach_add_([torch.empty(10, device=CUDA) for _ in range(200)], 1)
        assert counting.launches == 2


def test_an_event_is_waited_for_until_the_host_has_waited_for_something_later() -> None:
    with Counting() as counting:
        first, second, third = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        for event in (first, second):
            event.record(torch.cuda.current_stream(CUDA))
        with pytest.raises(RuntimeError, match="not ready"):
            first.elapsed_time(second)
        second.synchronize()
        assert counting.waits == ["event"]
        first.synchronize()  # over long since
        assert first.elapsed_time(second) > 0
        third.record()
        torch.empty(3, device=CUDA).tolist()
        third.synchronize()
        assert counting.waits == ["event", "tolist"]
        torch.cuda.synchronize()
        assert counting.waits[2:] == ["device"]
        pinned, on_device = torch.ones(3).pin_memory(), torch.empty(3, device=CUDA)
        pinned.copy_(on_device, non_blocking=True)
        assert counting.syncs == 3
        assert not pinned.any()
        for target, non_blocking in ((torch.ones(3), True), (pinned, False)):
            before = counting.syncs
            target.copy_(on_device, non_blocking=non_blocking)
            assert counting.syncs == before + 1


def test_every_worker_sends_what_this_one_sends() -> None:
    with fake_workers(2), Counting() as counting:
        own = torch.tensor([3, 4]).to(CUDA)
        everybody = torch.empty(4, dtype=torch.int64, device=CUDA)
        dist.all_gather_into_tensor(everybody, own)
        assert everybody[2:].tolist() == [3, 4]
        assert (counting.collectives, counting.syncs) == (1, 2)
        everybody.add_(1)
        assert everybody.tolist() == [0, 0, 0, 0]  # nobody knows


@pytest.mark.parametrize("method", ["dense", "uniform", "topk", "dgc"])
def test_a_step_has_launches_syncs_and_the_collectives_of_the_ledger(method: str) -> None:
    config = composed(["model=resnet18", "model.width=4", f"compressor={method}", "policy=fixed"])
    with fake_workers(2):
        row = launches.count_exchange(config, launches.shapes_of(config, 10))
    assert row["collectives"] == row["ledger"] > 0
    assert row["launches"] >= row["triton"] > 0
    assert row["syncs"] == (2 if method == "dgc" else 1)


@pytest.mark.parametrize(
    ("method", "waits"),
    [(method, 0) for method in ("dense", "uniform", "topk", "randomk", "onebit", "powersgd")]
    + [(method, 2) for method in ("threshold", "dgc_sampled", "redsync", "sidco")],
)
def test_a_part_of_a_step_waits_for_sizes_that_differ_between_ranks(
    method: str, waits: int
) -> None:
    """A part is a unit of FSDP, or a bucket: docs/fsdp.md and docs/gpus.md have these numbers."""
    config = composed([f"compressor={method}", "policy=fixed"])
    compressor = build_compressor(config, build_policy(config))
    with fake_workers(2), Counting() as counting:
        parts = [{f"{i}.{j}": torch.empty(64, 64, device=CUDA) for j in (1, 2)} for i in range(3)]
        like = {k: v for one in parts for k, v in one.items()}
        exchange = Exchange(compressor, like, World(device=CUDA))
        for _ in range(2):
            counting.clear()
            for i, part in enumerate(parts):
                exchange.run([part], Plan(0), part=i).finish()
            exchange.step += 1
        assert counting.syncs == waits * len(parts)  # of the second step: tables are on the device


@pytest.mark.parametrize(
    "overrides",
    [
        ["compressor=dion", "compressor.rank_fraction=0.25"],  # rank 80
        ["compressor=powersgd", "compressor.rank=65"],
    ],
)
def test_factors_of_a_rank_above_64_are_drawn_without_a_wait(overrides: list[str]) -> None:
    """No Triton kernel takes such a rank. Tensor operations draw the factors from the key of each matrix."""
    config = composed([*overrides, "policy=fixed"])
    compressor = build_compressor(config, build_policy(config))
    with fake_workers(2), Counting() as counting:
        given = {f"{i}.weight": torch.empty(320, 320, device=CUDA) for i in range(3)}
        exchange = Exchange(compressor, given, World(device=CUDA))
        for _ in range(2):
            exchange.average([given])
        assert counting.waits == []


# The table of a GPU is made without one: its methods run on the CPU.


def test_every_method_has_a_row() -> None:
    names = ("dense", "uniform", "topk", "dgc", "powersgd", "magnitude")
    sizes = ["model.width=4", "model.blocks=[1,1,1,1]"]
    cases = {name: launches.methods()[name] for name in names}
    rows = gpu_rows(torch.device("cpu"), 1, cases, sizes)
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
