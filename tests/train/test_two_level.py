"""Two-level worlds: dense inside a node, compressed between nodes; four workers, two nodes of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import World
from tiny_run import PLAIN, SETTINGS, UNIFORM4_EF, assert_same_state, built, play, tiny
from world import told_by

from dgc_repro.errors import UserError
from dgc_repro.launch.build import build_run, validate
from dgc_repro.train import checkpoint

pytestmark = pytest.mark.slow

NODES = ("launch.workers=4", "launch.workers_per_node=2", "train.batch_size=8")
POISONED = (
    "~model",
    "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:3,workers:4}",
)
LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
JOBS: dict[str, tuple[str, ...]] = {
    "dense": (*SETTINGS["dense"], *NODES),
    "uniform and error feedback": (*UNIFORM4_EF, *NODES),
    "stochastic": ("compressor=uniform", "compressor.rounding=stochastic", *NODES),
    "one vector": (*SETTINGS["one vector"], *NODES),
    "scattered": (
        *("compressor=uniform", "compressor.block=64", "exchange.combine=scatter", *NODES),
        "wrap=[error_feedback]",
    ),
    "tree": ("compressor=topk", "exchange.combine=tree", "wrap=[error_feedback]", *NODES),
    "ragged": ("compressor=dgc_sampled", "wrap=[error_feedback]", *NODES),
    "checked": (*UNIFORM4_EF, *NODES, "exchange.check=true"),
    "skip": (*UNIFORM4_EF, *NODES, *POISONED, "train.on_nonfinite=skip"),
    "raise": (*UNIFORM4_EF, *NODES, *POISONED),
}


@pytest.fixture(scope="module")
def four_workers() -> Iterator[World]:
    world = World(4)
    yield world
    world.stop()


def told_here(config: dict[str, Any]) -> dict[str, Any]:
    """A job of a rank: the whole run, as torchrun would start it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(dist.get_rank()))
        return told_by(build_run(config, torch.device("cpu")))


def test_the_poisoned_step_was_skipped() -> None:
    told = told_by(built(*JOBS["skip"]))
    assert [record["train/skipped_steps"] for record in told["records"]] == [1, 0]


def alike(told: dict[str, Any], node: int) -> dict[str, Any]:
    """What every rank and every world tells alike (see test_worlds.py). The record is the first
    worker's: of an all-to-all, nodes hand over different numbers of bytes."""
    counted = ("comm/payload_bytes", "comm/wire_bytes", "comm/node_bytes", "comm/floats")
    kept = ("train/loss", *(counted if node == 0 else ()))
    records = [{key: record[key] for key in kept} for record in told["records"]]
    return {"losses": told["losses"], "parameters": told["parameters"], "records": records}


@pytest.mark.parametrize("name", [name for name in JOBS if name != "raise"])
def test_real_nodes_do_what_simulated_nodes_do_bit_for_bit(name: str, four_workers: World) -> None:
    real = four_workers(told_here, tiny(*JOBS[name], *LOCAL))
    for rank, told in enumerate(real):
        simulated = told_by(built(*JOBS[name]), rank // 2)
        assert alike(told, rank // 2) == alike(simulated, rank // 2)
        assert told["state"] == simulated["state"], "both workers of a node keep the node's state"


def test_the_exchange_is_between_nodes_and_signals_are_between_workers() -> None:
    run = built(*UNIFORM4_EF, *NODES)
    assert run.exchange.link.wire.world_size == len(run.exchange.states) == 2
    assert run.link.wire.world_size == len(run.workers.ranks) == 4


def test_what_is_exchanged_is_the_mean_of_a_node() -> None:
    """A single node of all workers, uncompressed: DDP, and nothing crosses a network."""
    one_node = ("compressor=dense", "wrap=[]", *PLAIN, "launch.workers=2", "train.batch_size=8")
    inside = built(*one_node, "launch.workers_per_node=2")
    plain = built(*one_node)
    assert play(inside).losses == play(plain).losses
    assert inside.link.ledger.metrics()["comm/wire_bytes"] == 0


def test_bytes_between_nodes_and_inside_them_are_counted_apart() -> None:
    run = built("compressor=dense", "wrap=[]", *NODES)
    play(run, until=1)
    n = sum(parameter.numel() for parameter in run.module.parameters())
    told = run.link.ledger.metrics()
    assert told["comm/payload_bytes"] == 4 * n
    assert told["comm/wire_bytes"] == 4 * n * 2 * (2 - 1) / 2  # ring allreduce of two nodes
    # Inside: an allreduce of two workers, then the answer handed on.
    assert told["comm/node_bytes"] == 4 * n * 1 + 4 * n * 0.5


def test_what_is_compared_inside_nodes_is_counted_apart() -> None:
    told = []
    for check in ("false", "true"):
        run = built(*UNIFORM4_EF, *NODES, f"exchange.check={check}", "network=ethernet_1gbit")
        play(run, until=2)
        told.append((run.link.ledger.metrics(), run.link.ledger.step_seconds))
    (plain, seconds), (checked, seconds_checked) = told
    assert checked["comm/check_bytes"] > plain["comm/check_bytes"]
    assert seconds_checked == seconds
    for key in ("payload", "wire", "node", "signal"):
        assert checked[f"comm/{key}_bytes"] == plain[f"comm/{key}_bytes"]


def test_one_worker_a_node_is_a_world_of_one_level() -> None:
    one, plain = built(*UNIFORM4_EF, "launch.workers_per_node=1"), built(*UNIFORM4_EF)
    assert play(one).losses == play(plain).losses
    assert_same_state(one, plain)


def test_a_resumed_two_level_run_is_the_uninterrupted_one(tmp_path: Any) -> None:
    whole, first, second = (built(*UNIFORM4_EF, *NODES) for _ in range(3))
    play(whole)
    play(first, until=3, folder=tmp_path)
    assert checkpoint.load(second, tmp_path, "a config") == []
    play(second)
    assert_same_state(second, whole)


def test_a_gradient_that_is_not_finite_is_named_by_its_worker(four_workers: World) -> None:
    told = four_workers(told_here, tiny(*JOBS["raise"], *LOCAL))
    (text,) = {one["error"] for one in told}
    assert "(rank 3: head.weight)" in text


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "launch.workers_per_node=3",
            r"launch.workers_per_node: .* divides launch.workers=4.*got 3",
        ),
        ("launch.workers_per_node=0", r"launch.workers_per_node: .*got 0"),
        ("launch.workers_per_node=two", r"launch.workers_per_node: .*got 'two'"),
        ("exchange.junction=per_bucket", r"exchange.junction: a two-level world"),
    ],
)
def test_what_does_not_fit_is_one_line(given: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        validate(tiny(*NODES, "launch=local", given))
