"""`attach` for models of `fully_shard`, on two nodes of two ranks (real processes).

Exactness. Means are over two nodes: a sum of two numbers is the same in any order, so that comparisons are
bit for bit. DDP sums over four ranks in another order: there gradients agree to rounding.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sharded_loops
import torch
from everyday import everyday
from jobs import assert_alike, kept, same
from loops import LADDER, gravac
from processes import World as Ranks
from samples import Fragile
from sharded_loops import BF16, EF4, MISUSES, WIDE, Loop, play
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.nests import tensors_of

pytestmark = pytest.mark.timeout(400)
TOPK = D.ErrorFeedback(D.TopK(0.25))
LADDERED = D.Ladder((D.Dense(), D.ErrorFeedback(D.TopK(0.5)), TOPK))
FORMS = ("by_rank", "gathered")
METHODS: dict[str, Compressor] = {
    "topk": TOPK,
    "random bits": D.ErrorFeedback(D.Uniform(4, "stochastic", 16)),
    "randomk": D.ErrorFeedback(D.RandomK(0.25)),
    "two rounds": D.ErrorFeedback(D.PowerSGD(1)),
    "ragged": D.ErrorFeedback(D.Threshold(0.01)),
    "momentum": D.MomentumCorrection(D.TopK(0.25)),
    "between nodes in shards": D.ErrorFeedback(D.Sharded(D.Uniform(4))),
    "not the biases": D.ErrorFeedback(D.PerLayer(D.Uniform(4))),
}

SHARED = ("random bits", "between nodes in shards")  # in a checkpoint of all ranks
EVERY_DAY = ("random bits", "ragged", "momentum", "between nodes in shards")


def residual(states: Any, name: str) -> Any:
    """What a state still owes of a tensor: the sum of all its residuals, f64."""
    return sum(held[name].double() for label, held in states.items() if label.endswith("residual"))


def played(world: Ranks, loop: Loop) -> list[dict[str, Any]]:
    return world(play, loop)


# Dense. With HSDP FSDP has the whole mesh, and its all-reduce between the nodes is replaced.


def dense(how: str = "attached", **settings: Any) -> Loop:
    return Loop(how, D.Dense(), **settings)


OF_ONE_DIMENSION = {
    "micro-steps": dense(micro_steps=3),
    "detached": dense("detached"),
    "bfloat16, frozen": dense(mixed=BF16, frozen=True),
    "reduced in float32, frozen": dense(mixed=WIDE, frozen=True),
}
hsdp = partial(dense, replicated=True)
DENSE = OF_ONE_DIMENSION | {
    "HSDP": hsdp(),
    "HSDP, detached": hsdp("detached"),
    "HSDP, a factor that is the ranks of a node": hsdp(factor=2.0),
    "HSDP, a factor of 1, as torchtitan": hsdp(factor=1.0, sums=True),
    "HSDP, sums alone": hsdp(sums=True),
    "HSDP, bfloat16": hsdp(mixed=BF16),
    "HSDP, reduced in float32": hsdp(mixed=WIDE, factor=2.0),
    "HSDP, micro-steps that stay on a rank": hsdp(micro_steps=3),
    "HSDP, micro-steps that are reduced in the node": hsdp(micro_steps=3, reduces_each=True),
}
DAILY = (*OF_ONE_DIMENSION, "HSDP", "HSDP, bfloat16", "HSDP, micro-steps that stay on a rank")


@pytest.mark.parametrize("name", everyday(DENSE, *DAILY))
def test_dense_is_fsdps_and_ddps_average(four_workers: Ranks, name: str) -> None:
    """With two nodes FSDP's bit for bit; DDP's to rounding: the factor is undone in the loss."""
    loop = DENSE[name]
    ours = played(four_workers, loop)
    assert_alike(ours, played(four_workers, replace(loop, how="hsdp")), "means")
    if loop.frozen:
        assert ours[0]["means"][0]["first.0.weight"] is None
        assert "first.0.weight" not in ours[0]["own"][0]
    if loop.mixed not in (BF16, WIDE):
        ddp = played(four_workers, replace(loop, how="ddp"))[0]
        for mean, expected in zip(ours[0]["means"], ddp["means"], strict=True):
            torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize("factor", [None, 2.0])
@pytest.mark.parametrize("name", ["topk", "momentum"])
def test_hsdp_compresses_like_fsdp(four_workers: Ranks, name: str, factor: float | None) -> None:
    """Residuals too: they are in units of the gradient that the optimizer gets."""
    loop = Loop("attached", METHODS[name])
    whole = replace(loop, replicated=True, factor=factor)
    inner, ours = (played(four_workers, one) for one in (loop, whole))
    assert_alike(inner, ours, "means", "states")
    assert [one["ledger"] for one in inner] == [one["ledger"] for one in ours]


def test_hsdp_whose_nodes_are_ranks_compresses_as_ddp(four_workers: Ranks) -> None:
    assert four_workers(sharded_loops.differences_from_ddp) == [[]] * 4


def test_a_factor_that_is_set_after_attach_counts(four_workers: Ranks) -> None:
    assert four_workers(sharded_loops.factor_of_later) == [True] * 4


# Compressed.


@pytest.mark.parametrize("name", everyday(METHODS, *EVERY_DAY))
def test_the_nodes_exchange_parts_as_workers_do_tensors(four_workers: Ranks, name: str) -> None:
    """Ranks 0 and 2 (1 and 3) are a world of two workers, whose tensors are the parts of their shard."""
    story = played(four_workers, Loop("attached", METHODS[name]))
    for shard in (0, 1):
        pair = [story[shard], story[shard + 2]]
        names = list(pair[0]["own"][0])
        own = [[{n: g[n] for n in names} for g in one["own"]] for one in pair]
        means, states = simulated(METHODS[name], own, seed=shard)
        for worker, told in enumerate(pair):
            for step, mean in enumerate(means):
                parts = {n: told["parts"][step][n] for n in mean}
                assert same(parts, mean)
                assert same(told["states"][step], states[step][worker])
    assert not same(story[0]["states"], story[2]["states"]), "a residual is a worker's own"


def simulated(
    compressor: Compressor, own: list[list[dict[str, Tensor]]], seed: int
) -> tuple[list[dict[str, Tensor]], list[list[Any]]]:
    """Means and states of every step of two workers, whose gradients these are."""
    exchange = Exchange(compressor, own[0][0], World(2), seed=seed)
    means, states = [], []
    for gradients in zip(*own, strict=True):
        given = kept(list(gradients))
        exchange.average(given)
        means.append(given[0])
        states.append(kept([exchange.states(worker) for worker in (0, 1)]))
    return means, states


@pytest.mark.parametrize("mixed", [WIDE, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("compressor", [TOPK, LADDERED], ids=["topk", "a residual for each rung"])
def test_the_gradient_is_conserved(four_workers: Ranks, compressor: Compressor, mixed: Any) -> None:
    """Over the nodes: gradients + old residuals = the mean that was applied + new residuals, all means.
    Reduced in bfloat16, what the mean is rounded by is part of the residuals."""
    policy = D.Fixed("density", (0.5, 0.25), rung=2) if compressor is LADDERED else None
    story = played(
        four_workers, Loop("attached", compressor, mixed=mixed, settings={"policy": policy})
    )
    sparse = 0
    for shard in (0, 1):
        pair = [story[shard], story[shard + 2]]
        assert ("last.weight" in pair[0]["own"][0]) == (shard == 0), "the other has none of it"
        for name in pair[0]["own"][0]:
            old = torch.zeros(())
            for step in range(4):
                own = sum(one["own"][step][name].float() for one in pair) / 2
                new = sum(residual(one["states"][step], name) for one in pair) / 2
                sent = pair[0]["parts"][step][name]
                assert torch.equal(sent, pair[1]["parts"][step][name])
                torch.testing.assert_close(
                    (own + old).double(), (sent + new).double(), rtol=0, atol=1e-6
                )
                sparse += int((sent == 0).sum())
                old = new
    assert sparse > 0


@pytest.mark.parametrize(
    ("name", "form"),
    everyday(
        [
            *((name, "own") for name in METHODS),
            *((n, form) for n in ("topk", *SHARED) for form in FORMS),
        ],
        *((name, "own") for name in EVERY_DAY),
        *(("topk", form) for form in FORMS),
    ),
)
def test_a_resumed_loop_goes_on(four_workers: Ranks, tmp_path: Path, name: str, form: str) -> None:
    """Every rank loads its own file, or all load one checkpoint."""
    loop = Loop("attached", METHODS[name])
    resumed = replace(loop, resume_at=2, form=form, folder=str(tmp_path))
    whole, again = (played(four_workers, one) for one in (loop, resumed))
    assert_alike(whole, again, "own", "means", "states")
    assert [one["ledger"] for one in whole] == [one["ledger"] for one in again]


@pytest.mark.parametrize("form", FORMS)
def test_residuals_of_shards_have_no_mean(
    four_workers: Ranks, two_workers: Ranks, tmp_path: Path, form: str
) -> None:
    four_workers(sharded_loops.saved_by_these, str(tmp_path))
    for reshard in ("refuse", "mean"):
        for said, step in two_workers(sharded_loops.loaded_by_these, str(tmp_path), form, reshard):
            assert re.match(
                r"UserError: reshard: .* 4 ranks, .* continue with the same mesh$", said
            )
            assert step == 0


@pytest.mark.parametrize("compressor", [D.Dense(), TOPK], ids=str)
def test_the_ledger_counts_bytes_between_nodes(four_workers: Ranks, compressor: Compressor) -> None:
    for told in played(four_workers, Loop("attached", compressor)):
        ledger = told["ledger"]
        assert ledger["payload_bytes"] == told["sent"] > 0
        if isinstance(compressor, D.Dense):  # without the filling
            entries = sum(part.numel() for part in told["own"][0].values())
            assert ledger["payload_bytes"] == 4 * 4 * entries
        assert ledger["calls"]["signal"] == {"allreduce": 4}


# Policies.


def test_gravac_decides_for_the_next_step_and_all_ranks_alike(four_workers: Ranks) -> None:
    settings = {"policy": gravac()}
    story = played(four_workers, Loop("attached", LADDER, steps=8, settings=settings))
    assert "allgather" in story[0]["ledger"]["payload_by_collective"], "nothing was compressed"
    for told in story:
        assert same(told["means"], story[0]["means"])


def test_norms_of_gradients_are_those_of_whole_parameters(four_workers: Ranks) -> None:
    ours, ddp = (
        four_workers(sharded_loops.norms_of_two_steps, "attached"),
        four_workers(sharded_loops.norms_of_two_steps, "ddp"),
    )
    assert all(one == ours[0] for one in ours)
    assert ours[0] == pytest.approx(ddp[0], rel=1e-5)


# Steps that go wrong, and units that stand still.


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="a newer torch has it"
)
def test_a_layer_that_only_one_rank_uses_counts_as_zeros_on_the_others(four_workers: Ranks) -> None:
    assert four_workers(sharded_loops.left_out) == ["nothing"] * 4


def test_a_unit_that_no_rank_uses_has_no_gradient_and_residuals_wait(four_workers: Ranks) -> None:
    for have_gradients, change in four_workers(sharded_loops.unit_left_out):
        assert all(has == (not name.startswith("first")) for name, has in have_gradients.items())
        assert {name.split(".")[0] for name, does in change.items() if does} >= {"second"}
        assert not any(does for name, does in change.items() if name.startswith("first"))


NOT_FINITE = [*((c, "raise") for c in (EF4, TOPK, D.Dense(), Fragile())), (EF4, "skip")]


@pytest.mark.parametrize(("compressor", "way"), NOT_FINITE, ids=str)
def test_a_step_not_finite_changes_nothing(four_workers: Ranks, compressor: Any, way: str) -> None:
    """It is refused on all ranks, or skipped, and the next one is sound."""
    loop = Loop("attached", compressor, overflows=(1, 2), settings={"on_nonfinite": way})
    story = played(four_workers, loop)
    (said,) = {told["message"] for told in story}
    named = re.match(r"gradient: the gradient is not finite at step 3 \(.*rank 1: \w+", said)
    assert named if way == "raise" else said == ""
    assert "rank 2" not in said, "node 1 is finite"
    assert "rank 3" not in said
    for told in story:
        assert told["applied"] == [True, True, False, True]
        assert same(told["states"][2], told["states"][1])
        assert same(told["states"][3], told["states"][2]) == isinstance(compressor, D.Dense)
        assert set(told["means"][2].values()) == {None}
        for found in (*tensors_of(told["states"][3]), *told["means"][3].values()):
            assert found.isfinite().all()


def test_backward_raises_what_a_method_raises_and_the_next_is_sound(four_workers: Ranks) -> None:
    for said, leaves_gradients in four_workers(sharded_loops.broken):
        assert said == ["nothing", "ZeroDivisionError: broken on purpose", "nothing"]
        assert leaves_gradients == [True, False, True]


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_mistake_is_one_line_on_all_ranks(four_workers: Ranks, misuse: str) -> None:
    for said in four_workers(sharded_loops.told_of, misuse):
        assert "\n" not in said
        assert re.match(rf"(User|Value)Error: {MISUSES[misuse]}", said), said
