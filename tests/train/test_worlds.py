"""The same runs in real processes and in one simulated world, of one level and of two.

With two workers a sum is the same whoever adds, so that even dense is equal bit for bit. Two-level
worlds: dense inside a node, compressed between nodes; four workers, two nodes of two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import World
from tiny_run import (
    PLAIN,
    RECIPE,
    SETTINGS,
    TEXT,
    UNIFORM4_EF,
    assert_continues,
    assert_same_state,
    built,
    play,
    tiny,
)
from told import told_by, told_here

from dgc_repro.errors import UserError
from dgc_repro.launch.rules import validate

pytestmark = pytest.mark.slow

PER_BUCKET = "exchange.overlap=true"
SKIP = "train.on_nonfinite=skip"
POISON = "+model={{_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:{},workers:{}}}"
HALVES = (*PLAIN, "train.batch_size=8", "train.accumulate=2")
LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
TWO: dict[str, tuple[str, ...]] = {
    "dense": SETTINGS["dense"],
    "uniform and error feedback": UNIFORM4_EF,
    "stepwise": SETTINGS["stepwise over a ladder of residuals"],
    "powersgd": SETTINGS["powersgd"],  # its kernels add in one order, wherever a tensor lies
    "randomk": SETTINGS["randomk apart"],
    "dgc": SETTINGS["dgc"],
    "block momentum": SETTINGS["block momentum"],
    "accumulated": (*HALVES, *UNIFORM4_EF),
    "skip": ("~model", POISON.format(1, 2), *UNIFORM4_EF, SKIP),
    "text": (*TEXT, *UNIFORM4_EF),
    "recipe": (*RECIPE, "train.precision=fp32"),  # each rank fits the whitening
    "gravac": SETTINGS["gravac"],
    "gravac a step later": SETTINGS["gravac a step later"],
    "local steps": ("train.local_steps=3", *UNIFORM4_EF),
    "local steps of adam, skipping": (
        *(
            "train.local_steps=3",
            "optimizer=adam",
            "compressor=topk",
            "~model",
            POISON.format(0, 2),
        ),
        SKIP,
    ),
}
NOT_OVERLAPPED = (
    *("stepwise", "powersgd", "randomk", "gravac"),
    *("local steps", "local steps of adam, skipping"),
)
NODES = ("launch.workers=4", "launch.workers_per_node=2", "train.batch_size=8")
FOUR: dict[str, tuple[str, ...]] = {
    "dense": SETTINGS["dense"],
    "uniform and error feedback": UNIFORM4_EF,
    "scattered": (
        *("compressor=uniform", "compressor.block=64", "exchange.aggregation=sharded"),
        "wrap=[error_feedback]",
    ),
    "tree": ("compressor=topk", "exchange.aggregation=gtopk", "wrap=[error_feedback]"),
    "ragged": ("compressor=dgc_sampled", "wrap=[error_feedback]"),
    "skip": (*UNIFORM4_EF, "~model", POISON.format(3, 4), SKIP),
}


def shared_part(told: dict[str, Any], *, floats: bool) -> dict[str, Any]:
    """What every rank must tell alike, and every world. Evaluation batches are cut otherwise where
    workers are simulated; comparing replicas needs replicas; buffers that one process holds need no
    broadcast; of a ragged payload each worker counts its own ``floats``."""
    other = {f"{part}/{name}" for part in ("validation", "test") for name in ("loss", "perplexity")}
    other |= {"comm/check_bytes", "comm/total_wire_bytes", "comm/buffer_bytes"}
    if not floats:
        other.add("comm/floats")
    records = [{k: v for k, v in record.items() if k not in other} for record in told["records"]]
    # As text: of an epoch whose first round goes on, the loss is NaN.
    return {"losses": repr(told["losses"]), "parameters": told["parameters"], "records": records}


@pytest.mark.parametrize("name", TWO)
def test_real_processes_do_what_the_simulated_world_does_bit_for_bit(
    name: str, two_workers: World, tmp_path: Path
) -> None:
    # With checkpoints, as a real run has them: their broadcasts of buffers are in the ledger.
    real = two_workers(told_here, tiny(*TWO[name], *LOCAL), tmp_path)
    for rank, told in enumerate(real):
        simulated = told_by(built(*TWO[name]), rank)
        floats = rank == 0 or not name.startswith("dgc")
        assert shared_part(told, floats=floats) == shared_part(simulated, floats=floats)
        assert told["state"] == simulated["state"]
        if rank == 0:  # rank 0's are the ones that count
            assert told["buffers"] == simulated["buffers"]
        for one, two in zip(told["records"], simulated["records"], strict=True):
            differ = {key for key in one if one[key] != real[0]["records"][one["epoch"] - 1][key]}
            assert differ <= (set() if floats else {"comm/floats"})
            for key in ("validation/loss", "test/loss"):
                # Batches of other sizes: up to 288 products summed in another order, 18 layers.
                assert one[key] == pytest.approx(two[key], rel=18 * 288 * 2.0**-24)
        if SKIP in TWO[name]:
            skipped = 1 / 2 if name.startswith("local steps") else 1  # on one of two workers
            assert [record["train/skipped_steps"] for record in told["records"]] == [skipped, 0]
    if name not in NOT_OVERLAPPED:  # dense too, because two numbers have one sum
        overlapped = two_workers(told_here, tiny(*TWO[name], *LOCAL, PER_BUCKET))
        for bucket, after in zip(overlapped, real, strict=True):
            for part in ("losses", "parameters", "state"):
                assert bucket[part] == after[part], part


@pytest.mark.parametrize("more", [(), (PER_BUCKET,), NODES])
def test_a_gradient_that_is_not_finite_is_named_on_all_ranks(
    more: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue("four_workers" if more == NODES else "two_workers")
    bad = world.size - 1
    given = ("~model", POISON.format(bad, world.size), *UNIFORM4_EF, *more)
    (text,) = {told["error"] for told in world(told_here, tiny(*given, *LOCAL))}
    assert text.startswith("train.on_nonfinite: the gradient is not finite at step 3 (")
    assert f"rank {bad}: head.weight" in text
    assert "\n" not in text


# -- two levels ----------------------------------------------------------------------------------


def between_nodes(told: dict[str, Any], node: int) -> dict[str, Any]:
    """What every rank of a node tells alike, in any world. The record is the first worker's: of an
    all-to-all, nodes hand over different numbers of bytes."""
    counted = ("comm/payload_bytes", "comm/wire_bytes", "comm/node_bytes", "comm/floats")
    kept = ("train/loss", "train/skipped_steps", *(counted if node == 0 else ()))
    records = [{key: record[key] for key in kept} for record in told["records"]]
    return {key: told[key] for key in ("losses", "parameters", "state")} | {"records": records}


@pytest.mark.parametrize("name", FOUR)
def test_real_nodes_do_what_simulated_nodes_do_bit_for_bit(name: str, four_workers: World) -> None:
    """Both workers of a node keep the node's state."""
    simulated = [told_by(built(*FOUR[name], *NODES), node) for node in (0, 1)]
    for rank, told in enumerate(four_workers(told_here, tiny(*FOUR[name], *NODES, *LOCAL))):
        assert between_nodes(told, rank // 2) == between_nodes(simulated[rank // 2], rank // 2)
    skipped = [record["train/skipped_steps"] for record in simulated[0]["records"]]
    assert skipped == [int(name == "skip"), 0]


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


def test_one_worker_a_node_is_a_world_of_one_level() -> None:
    one, plain = built(*UNIFORM4_EF, "launch.workers_per_node=1"), built(*UNIFORM4_EF)
    assert play(one).losses == play(plain).losses
    assert_same_state(one, plain)


def test_a_resumed_two_level_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = built(*UNIFORM4_EF, *NODES)
    assert_continues((*UNIFORM4_EF, *NODES), 3, tmp_path, whole, play(whole))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "launch.workers_per_node=3",
            r"launch.workers_per_node: .* divides launch.workers=4.*got 3",
        ),
        ("launch.workers_per_node=0", r"launch.workers_per_node: .*got 0"),
        ("launch.workers_per_node=two", r"launch.workers_per_node: .*got 'two'"),
        ("exchange.overlap=true", r"exchange.overlap: a two-level world"),
    ],
)
def test_what_does_not_fit_is_one_line(given: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        validate(tiny(*NODES, "launch=local", given))
