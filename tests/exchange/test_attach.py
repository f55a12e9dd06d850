"""For every model that plain DDP can train: `attach` gives the right result, or refuses in one line.

Exactness. Two workers: a sum of two numbers is the same in any order, so that every comparison here is
bit for bit. With more workers `Mean` is equal to rounding (docs/architecture.md, worlds).
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import loops
import pytest
import torch
from everyday import everyday
from laws import same
from loops import EF4, LADDER, MODELS, OVERLAP, Broken, Loop, gravac, played_by_ranks
from processes import World
from samples import Fragile, LowRank, Threshold
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange, in_memory_order
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import Plan

EF4_RANDOM = ErrorFeedback(Uniform(4, "stochastic", 50))
LOOPS = {name: Loop(name, None, steps=8) for name in MODELS} | {
    "accumulated": Loop("mixed", None, micro_steps=3),
    "bucket views": Loop("mixed", None, view=True),
    "unused, bucket views": Loop("unused", None, steps=8, view=True),
    "unused, accumulated": Loop("unused", None, steps=8, micro_steps=2),
    "frozen before": Loop("float32", None, frozen=True),
    "frozen in mid-training": Loop("float32", None, steps=9, freezes=(3, 6)),
    "frozen, zeros kept": Loop("float32", None, steps=9, freezes=(3, 6), set_to_none=False),
    "frozen, zeros kept in views": Loop(
        "float32", None, steps=9, freezes=(3, 6), set_to_none=False, view=True
    ),
}
COMPRESSORS: dict[str, Compressor] = {
    "topk": TopK(0.1),
    "topk fed back": ErrorFeedback(TopK(0.1)),
    "uniform": PerLayer(EF4),
    "directions": PerLayer(ErrorFeedback(Dion(0.3))),
}
EARLY = ["float32", "mixed", "unused", "accumulated", "frozen before", "frozen in mid-training"]
CONVERTED = [name for name in LOOPS if "frozen" not in name]


def played(world: World, loop: Loop) -> list[dict[str, Any]]:
    """Every rank's story; parameters must be alike on all ranks."""
    stories = world(loops.play, loop)
    for story in stories:
        assert same(story["parameters"], stories[0]["parameters"]), "replicas drift"
        assert all(bool(p.isfinite().all()) for p in story["parameters"].values())
    return stories


@pytest.mark.parametrize("name", LOOPS)
def test_the_uncompressed_baseline_is_plain_ddp_bit_for_bit(two_workers: World, name: str) -> None:
    loop = LOOPS[name]
    plain = played(two_workers, loop)[0]
    ways = [replace(loop, overlap=overlap) for overlap in OVERLAP]
    if name in ("float32", "channels last", "frozen before"):
        ways.append(replace(loop, unit="model"))
    for way in ways:
        ours = played(two_workers, replace(way, compressor=Dense()))[0]
        assert same(ours["parameters"], plain["parameters"]), way
        assert same(ours["means"], plain["means"]), way  # None where plain DDP has none
        if loop.frozen:
            sent = 4 * sum(mean.numel() for mean in ours["means"][0].values() if mean is not None)
            assert ours["saved"]["ledger"]["payload_bytes"] == loop.steps * sent, way


@pytest.mark.parametrize(
    ("name", "compressor"),
    everyday(
        product(CONVERTED, COMPRESSORS),
        *((name, "topk fed back") for name in CONVERTED),
        *(("float32", compressor) for compressor in COMPRESSORS),
    ),
)
def test_compressed_means_are_those_of_the_simulated_world(
    two_workers: World, name: str, compressor: str
) -> None:
    loop = replace(LOOPS[name], compressor=COMPRESSORS[compressor])
    stories = played(two_workers, loop)
    reference = simulated(loop.compressor, [story["own"] for story in stories])
    for found, expected in zip(stories[0]["means"], reference, strict=True):
        for tensor, mean in found.items():
            if tensor not in expected:
                assert mean is None, tensor
            else:  # in the parameter's type
                real = in_memory_order(mean)
                assert torch.equal(real, expected[tensor].to(real.dtype).view(real.shape)), tensor
    by_bucket = played(two_workers, replace(loop, overlap=True))
    for one, other in zip(stories, by_bucket, strict=True):
        assert same(other["parameters"], one["parameters"])
        assert same(other["states"][-1], one["states"][-1])
    for residual in residuals(by_bucket[0]["states"][-1]):
        assert residual.dtype == torch.float32


def simulated(
    compressor: Compressor | None, own: list[list[dict[str, Tensor | None]]]
) -> list[dict[str, Tensor]]:
    """The means of simulated workers with these gradients in float32, without those that no worker has.
    What `PerLayer` leaves out is averaged in its own type."""
    assert compressor is not None

    def exchanged(gradient: Tensor) -> Tensor:
        real = in_memory_order(gradient.clone())
        return real if isinstance(compressor, PerLayer) and real.dim() < 2 else real.float()

    first = {n: g for step in own[0] + own[1] for n, g in step.items() if g is not None}
    names = [name for name in own[0][0] if name in first]
    # `idle` is never used: zeros of any shape will do.
    whole = {name: exchanged(first.get(name, torch.zeros(6, 6))) for name in own[0][0]}
    link = Link(SimulatedWire(2), Ledger(), Clock(torch.device("cpu")))
    exchange = GradientExchange(compressor, whole, link)
    found = []
    for gradients in zip(*own, strict=True):
        for worker, of_worker in enumerate(gradients):
            filled = {
                name: torch.zeros_like(whole[name]) if gradient is None else exchanged(gradient)
                for name, gradient in of_worker.items()
            }
            exchange.open(worker, filled, Plan(None))
        means = exchange.finish()
        present = {n for worker in gradients for n, g in worker.items() if g is not None}
        found.append({name: means[name].clone() for name in names if name in present})
        exchange.absent = frozenset(whole) - present
        exchange.commit()
    return found


def residuals(state: Any) -> list[Tensor]:
    """All residuals in a nest of states."""
    if not isinstance(state, dict):
        return []
    own = [state["residual"]] if "residual" in state else []
    return own + [found for inner in state.values() for found in residuals(inner)]


CHECKED = {"check": True}
ALIKE = {
    "one round": Loop("float32", EF4),
    "random, channels last": Loop("channels last", EF4_RANDOM),
    "two rounds": Loop("float32", LowRank()),
    "two rounds, checked": Loop("float32", LowRank(), settings=CHECKED),
    "ragged": Loop("float32", Threshold(0.01)),
    "ragged, checked": Loop("float32", Threshold(0.01), settings=CHECKED),
    "a ladder's two rounds": Loop(
        "float32", Ladder((LowRank(), EF4)), settings={"policy": Fixed("any", (1,))}
    ),
    "accumulated": Loop("float32", EF4, micro_steps=3),
    "shards": Loop("float32", ErrorFeedback(Sharded(Uniform(4, "stochastic", 16)))),
    "ragged shards": Loop("float32", ErrorFeedback(Sharded(TopK(0.1)))),
    "gravac a step later": Loop(
        "float32", LADDER, steps=8, settings={"policy": gravac(), "check": True}
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_both_junctions_and_a_resumed_loop_train_alike_bit_for_bit(
    two_workers: World, name: str
) -> None:
    loop = ALIKE[name]
    bucket = replace(loop, overlap=True)
    after = played(two_workers, loop)
    for other in (bucket, replace(bucket, resume_at=3), replace(loop, resume_at=2)):
        for one, two in zip(after, played(two_workers, other), strict=True):
            for part in ("means", "states", "parameters"):
                assert same(one[part], two[part]), (part, other)
            assert same(one["saved"]["exchange"], two["saved"]["exchange"])
            assert (
                one["saved"]["ledger"]["payload_bytes"] == two["saved"]["ledger"]["payload_bytes"]
            )
            for key in ("last", "next", "gains", "theta_min", "candidate"):
                policies = [story["saved"]["policy"].get(key) for story in (one, two)]
                assert policies[0] == policies[1], (key, other)
            if other.overlap:
                assert len(two["buckets"]) > loop.steps, "one bucket a step shows nothing"
    if name == "one round":
        assert not same(after[0]["states"], after[1]["states"]), "a residual is a worker's own"


@pytest.mark.parametrize("overlap", OVERLAP)
def test_three_workers_agree(three_workers: World, overlap: bool) -> None:
    found = played(three_workers, Loop("float32", EF4, overlap))[0]
    assert same(found["parameters"], played(three_workers, Loop("float32", EF4))[0]["parameters"])


@pytest.mark.parametrize("compressor", [EF4, Dense()], ids=str)
def test_gradients_accumulate_after_backward_with_and_without_no_sync(
    two_workers: World, compressor: Compressor
) -> None:
    held = Loop("float32", compressor, micro_steps=2)
    each = played(two_workers, replace(held, no_sync=False))[0]
    assert same(each["parameters"], played(two_workers, held)[0]["parameters"])


@pytest.mark.parametrize("compressor", [EF4, LowRank()], ids=str)
def test_buckets_that_land_during_backward_are_decompressed_then(
    two_workers: World, compressor: Compressor
) -> None:
    after = Loop("float32", compressor)
    slow = played(two_workers, replace(after, overlap=True, pause_seconds=0.2))
    for one, other in zip(played(two_workers, after), slow, strict=True):
        assert same(one["parameters"], other["parameters"])
        assert len(other["early"]) >= 3, "nothing landed in time"


def test_a_dense_and_a_compressed_step_of_gravac_are_different_payloads(two_workers: World) -> None:
    """Of 4 steps with an eps that all reach, the first is whole and the others are compressed."""
    some, all_whole = (
        played(two_workers, replace(ALIKE["gravac a step later"], steps=4, settings=settings))[0]
        for settings in ({"policy": gravac(eps=1e-6)}, {"policy": gravac(eps=1.0)})
    )
    sent = [story["saved"]["ledger"]["payload_bytes"] for story in (some, all_whole)]
    assert sent[0] < 0.8 * sent[1]
    assert all_whole["saved"]["policy"]["last"]["branch"] == "dense"
    assert not any(bool(residual.any()) for residual in residuals(all_whole["states"][-1]))


# Steps that go wrong, and layers that stand still.


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_layer_frozen_in_mid_training_stands_still_and_its_residual_waits(
    two_workers: World, overlap: bool, view: bool, set_to_none: bool
) -> None:
    loop = Loop("float32", EF4, overlap, steps=8, freezes=(3, 6), view=view)
    loop = replace(loop, set_to_none=set_to_none)
    for story in played(two_workers, loop):
        for step in range(3, 6):
            mean = story["means"][step]["layers.0.weight"]
            assert mean is None if set_to_none else not mean.any()
            states = [story["states"][s]["layers.0.weight"]["residual"] for s in (2, step)]
            assert states[0].any()
            assert torch.equal(*states)
        assert story["means"][6]["layers.0.weight"].any()


@pytest.mark.parametrize(("set_to_none", "freezes"), [(False, None), (False, (2, 6)), (True, None)])
def test_means_that_stay_in_a_buffer_train_as_copied_ones(
    two_workers: World, set_to_none: bool, freezes: tuple[int, int] | None
) -> None:
    """With ``gradient_as_bucket_view`` the buffer of a dense step is the gradient. Where tensors lie in it
    changes with the rung, also while a layer is frozen."""
    loop = Loop("float32", loops.ONE_APART, steps=8, micro_steps=2, freezes=freezes)
    settings = {"policy": loops.OneApart("density", (0.5,))}
    loop = replace(loop, set_to_none=set_to_none, settings=settings)
    copied, kept = (played(two_workers, replace(loop, view=view)) for view in (False, True))
    for one, other in zip(copied, kept, strict=True):
        assert same(other["means"], one["means"])
        assert same(other["states"], one["states"])
        assert same(other["parameters"], one["parameters"])


def test_gradients_that_are_added_to_means_are_not_overwritten(two_workers: World) -> None:
    copied, kept = (two_workers(loops.added_to, view) for view in (False, True))
    for one, other in zip(copied, kept, strict=True):
        assert same(other, one)


def test_a_dense_mean_is_not_copied_where_gradients_may_be_views(two_workers: World) -> None:
    assert two_workers(loops.storages_of_a_dense_step, True) == [1, 1]
    assert min(two_workers(loops.storages_of_a_dense_step, False)) > 1


def test_a_mean_that_is_not_laid_out_like_its_parameter_is_copied(two_workers: World) -> None:
    copied, kept = (two_workers(loops.means_by_columns, view) for view in (False, True))
    for one, other in zip(copied, kept, strict=True):
        assert same(other, one)


def test_a_scaled_loop_is_that_of_plain_ddp_overflow_included(two_workers: World) -> None:
    plain = Loop("float32", None, steps=8, scaled=True, overflows=(1, 4))
    stock, ours = (
        played(two_workers, loop) for loop in (plain, replace(plain, compressor=Dense()))
    )
    assert same(ours[0]["parameters"], stock[0]["parameters"])
    assert ours[0]["scales"] == ours[1]["scales"] == stock[0]["scales"]
    assert ours[0]["scales"][3:5] == [1024, 512]


def test_an_overflow_on_one_rank_leaves_residuals_alone_and_the_scale_no_trace(
    two_workers: World,
) -> None:
    loop = Loop("float32", EF4, steps=8, scaled=True, overflows=(1, 4))
    for story in played(two_workers, loop):
        assert same(story["states"][4], story["states"][3])
        assert not same(story["states"][5], story["states"][4])
        assert all(bool(torch.isinf(g).all()) for g in story["means"][4].values())
    calm = replace(loop, overflows=None)
    unscaled = replace(calm, scaled=False)
    assert same(*(played(two_workers, one)[0]["parameters"] for one in (calm, unscaled)))


SCALED: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": True},
    "overlap, bucket views": {"overlap": True, "view": True},
    "hook": {"hook": True},
    "hook made before ddp": {"hook": True, "early": True},
    "hook, bucket views": {"hook": True, "view": True},
}


SCALED_LOOPS = {
    "float32": Loop("float32", EF4),
    "unused": Loop("unused", EF4),
    "accumulated": Loop("float32", EF4, micro_steps=3),
    "frozen in the overflow, zeros kept": Loop("unused", EF4, freezes=(4, 5), set_to_none=False),
}


@pytest.mark.parametrize(
    ("name", "way"),
    everyday(
        product(SCALED_LOOPS, SCALED),
        *(("float32", way) for way in SCALED),
        *((name, "overlap, bucket views") for name in SCALED_LOOPS),
    ),
)
def test_a_growing_scale_trains_alike_during_and_after_backward(
    two_workers: World, way: str, name: str
) -> None:
    """Bit for bit, with an overflow on one rank. A scale is a power of 2."""
    loop = replace(SCALED_LOOPS[name], steps=9, scaled=True, overflows=(1, 4), grows_every=2)
    expected = played(two_workers, loop)
    assert expected[0]["scales"][:6] == [1024, 2048, 2048, 4096, 2048, 2048]
    for one, other in zip(expected, played(two_workers, replace(loop, **SCALED[way])), strict=True):
        assert other["scales"] == one["scales"]
        for part in ("means", "states", "parameters"):
            assert same(one[part], other[part]), part


def test_a_wrapped_hook_of_a_scaled_loss_trains_all_ranks_alike(two_workers: World) -> None:
    loop = Loop("float32", EF4, hook=True, steps=8, wrapper=bf16_compress_wrapper, scaled=True)
    loop = replace(loop, overflows=(1, 4), grows_every=2)
    for story in played(two_workers, loop):
        assert same(story["states"][4], story["states"][3])
        assert story["scales"][3:5] == [4096, 2048]
    calm = replace(loop, overflows=None)
    unscaled = replace(calm, scaled=False)
    assert same(*(played(two_workers, one)[0]["parameters"] for one in (calm, unscaled)))


def test_norms_that_a_policy_watches_are_those_of_unscaled_gradients(two_workers: World) -> None:
    for ways in two_workers(loops.scaled_accordion):
        for plain, scaled in ways:
            assert scaled == plain


@pytest.mark.parametrize(
    ("compressor", "overlap", "sends_first"),
    [
        *((c, overlap, False) for c in (EF4, Dense()) for overlap in OVERLAP),
        *((c, OVERLAP[0], True) for c in (EF4, Dense(), ErrorFeedback(Threshold(0.5)))),
        *((Fragile(), OVERLAP[0], sends_first) for sends_first in (False, True)),
    ],
    ids=str,
)
def test_a_step_that_is_not_finite_names_the_rank_and_is_as_if_it_had_been_left_out(
    two_workers: World, compressor: Compressor, overlap: bool, sends_first: bool
) -> None:
    """Also, after backward, of a compressor that fails on a NaN before it asks for anything. Where payloads
    are sent before the signals are read, that rank sends zeros."""
    loop = Loop("float32", compressor, overlap, steps=6, sends_first=sends_first)
    caught = played(two_workers, replace(loop, overflows=(1, 2)))
    assert caught[0]["message"] == caught[1]["message"]
    for story in caught:
        said = story["message"]
        assert re.match(r"gradient: the gradient is not finite at step 3 \(.*rank 1: \w+", said)
        assert overlap or "rank 0" not in said
        assert same(story["states"][2], story["states"][1])
        assert set(story["means"][2].values()) == {None}
    left_out = played(two_workers, replace(loop, leaves_out=2))
    for one, other in zip(caught, left_out, strict=True):
        assert same(one["means"][3:], other["means"][3:])
        assert same(one["parameters"], other["parameters"])


def test_a_refused_step_leaves_no_mean_for_a_bucket_that_ddp_has_made_anew(
    two_workers: World,
) -> None:
    loop = Loop("float32", EF4, True, static=True, view=True, overflows=(1, 0))
    for story in played(two_workers, loop):
        for means in story["means"][1:]:
            assert all(bool(mean.isfinite().all()) for mean in means.values())


@pytest.mark.parametrize("overlap", OVERLAP)
def test_an_exception_in_an_exchange_is_raised_by_step_and_ranks_that_disagree_end(
    two_workers: World, overlap: bool
) -> None:
    said = two_workers(played_by_ranks, [Loop("float32", Broken(1), overlap)] * 2)
    assert said == ["ZeroDivisionError: broken on purpose"] * 2
    differ = [
        Loop("float32", loops.Hidden(compressor), overlap, settings=CHECKED)
        for compressor in (Uniform(8), Uniform(4))
    ]
    said = two_workers(played_by_ranks, differ)
    assert said[0] == said[1]
    assert said[0].startswith("RanksDisagree: rank 1 is about to ask for: gather gradient")


@pytest.mark.parametrize(
    "way",
    [{}, {"sends_first": True}, {"overlap": True}, {"hook": True}],
    ids=["after backward", "payload first", "overlap", "hook"],
)
def test_a_step_that_is_skipped_leaves_no_trace_in_residuals_parameters_and_buffers(
    two_workers: World, way: dict[str, Any]
) -> None:
    skips = {"on_nonfinite": "skip"}
    loop = Loop("channels last", EF4, steps=6, settings=skips, **way)
    caught = played(two_workers, replace(loop, overflows=(0, 2)))
    left_out = played(two_workers, replace(loop, leaves_out=2))
    for one, other in zip(caught, left_out, strict=True):
        assert one["message"] == ""
        assert way.get("hook") or one["applied"] == [True, True, False, True, True, True]
        assert same(one["states"][2], one["states"][1])
        assert set(one["means"][2].values()) == {None}
        for part in ("parameters", "buffers"):
            assert same(one[part], other[part])
        assert all(bool(buffer.isfinite().all()) for buffer in one["buffers"])


@pytest.mark.parametrize("name", ["mixed", "unused", "frozen in mid-training"])
def test_payloads_that_are_sent_before_the_signals_are_read_train_alike_bit_for_bit(
    two_workers: World, name: str
) -> None:
    loop = replace(LOOPS[name], compressor=EF4)
    stories = [played(two_workers, replace(loop, sends_first=first)) for first in (False, True)]
    for one, other in zip(*stories, strict=True):
        for part in ("means", "states", "parameters"):
            assert same(one[part], other[part])
        assert one["saved"]["ledger"] == other["saved"]["ledger"]


@pytest.mark.parametrize("overlap", OVERLAP)
def test_one_rank_has_all_ranks_skip_a_step(two_workers: World, overlap: bool) -> None:
    for said in two_workers(loops.skipped_by_one_rank, overlap):
        assert said == ([True, False, True], False, False)


LEGAL = [
    *(
        (name, overlap, 2)
        for overlap in OVERLAP
        for name in ("evaluated_in_between", "accumulated")
    ),
    *((name, overlap, 2) for overlap in OVERLAP for name in ("perturbed", "checkpointed")),
    *((name, overlap, 2) for overlap in OVERLAP for name in ("never_zeroed", "left_out_by_hand")),
    *(("last_backward_in_a_closure", overlap, 2) for overlap in OVERLAP),
    *(("adversarial", overlap, 2) for overlap in OVERLAP),
    *(("with_closures", overlap, None) for overlap in OVERLAP),
    *((name, False, 2) for name in ("sum_of_backwards", "written_by_hand", "one_rank_alone")),
    ("renormalized", False, None),
]


@pytest.mark.parametrize(("name", "overlap", "steps"), LEGAL)
def test_loops_that_keep_the_rule_are_not_refused(
    two_workers: World, name: str, overlap: bool, steps: int | None
) -> None:
    first, second = two_workers(loops.loop_of, name, overlap)
    assert first[0] == second[0] == "nothing"
    assert steps is None or first[1] == steps
    assert same(first[2], second[2]), "replicas drift"


@pytest.mark.parametrize("way", ["after backward", "overlap", "hook"])
def test_a_copy_of_a_model_is_plain_ddp_and_can_be_attached(two_workers: World, way: str) -> None:
    for told, again in two_workers(loops.copies, way):
        for name, found in told.items():
            assert same(found, told["plain"]), name
        assert same(again["copy"], again["original"])


@pytest.mark.parametrize("way", ["after backward", "overlap", "hook"])
@pytest.mark.parametrize("part", ["module", "model"])
def test_a_compiled_model_trains_as_one_that_is_not(
    two_workers: World, part: str, way: str
) -> None:
    for plain, compiled in two_workers(loops.compiled, part, way, "eager"):
        assert same(plain, compiled)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")
def test_a_model_of_compiled_kernels_trains_as_one_that_is_not(two_workers: World) -> None:
    for plain, compiled in two_workers(loops.compiled, "model", "overlap", "inductor"):
        for one, other in zip(plain, compiled, strict=True):
            torch.testing.assert_close(one, other)  # kernels round in another order


def test_a_model_whose_buffers_are_kept_is_freed(two_workers: World) -> None:
    assert two_workers(loops.freed_after_an_evaluation) == [True, True]


# Communication hooks of torch.


@pytest.mark.parametrize(
    "name", everyday([*LOOPS, "static graph"], *EARLY, "static graph", "unused, bucket views")
)
def test_a_hook_trains_as_attach_with_overlap_bit_for_bit(two_workers: World, name: str) -> None:
    loop = replace(LOOPS.get(name) or Loop("float32", None, static=True, view=True), compressor=EF4)
    expected = played(two_workers, replace(loop, overlap=True))
    for one, other in zip(expected, played(two_workers, replace(loop, hook=True)), strict=True):
        for part in ("means", "states", "parameters"):
            assert same(one[part], other[part]), part
        assert one["saved"]["ledger"] == other["saved"]["ledger"]
        assert other["buckets"] == one["buckets"]
        assert same(other["own"], other["means"]), "backward returned before the means were there"


HOOKS = ["one round", "two rounds, checked", "ragged, checked", "shards"]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_resumes_bit_for_bit(two_workers: World, name: str) -> None:
    loop = replace(ALIKE[name], hook=True)
    expected = played(two_workers, replace(ALIKE[name], overlap=True))
    for one, other in zip(expected, played(two_workers, replace(loop, resume_at=3)), strict=True):
        for part in ("means", "states", "parameters"):
            assert same(one[part], other[part]), part
        assert one["saved"]["ledger"] == other["saved"]["ledger"]


@pytest.mark.parametrize("name", [*EARLY, "unused, bucket views", "frozen, zeros kept in views"])
def test_a_hook_that_is_made_before_ddp_trains_and_is_saved_as_one_made_after(
    two_workers: World, name: str
) -> None:
    loop = replace(LOOPS[name], compressor=EF4, hook=True)
    expected = played(two_workers, loop)
    for one, other in zip(expected, played(two_workers, replace(loop, early=True)), strict=True):
        for part in ("means", "states", "parameters"):
            assert same(one[part], other[part]), part
        assert same(one["saved"], other["saved"])


def test_a_hook_that_is_made_before_ddp_skips_its_first_step_without_a_trace(
    two_workers: World,
) -> None:
    skips = {"on_nonfinite": "skip"}
    loop = Loop("channels last", EF4, hook=True, early=True, settings=skips)
    caught = played(two_workers, replace(loop, overflows=(0, 0)))
    left_out = played(two_workers, replace(loop, leaves_out=0))
    for one, other in zip(caught, left_out, strict=True):
        for part in ("parameters", "buffers"):
            assert same(one[part], other[part])


@pytest.mark.parametrize("early", [False, True])
def test_a_wrapped_hook_has_the_values_of_torchs_hook(two_workers: World, early: bool) -> None:
    for found in two_workers(loops.torchs_and_our_bf16, early):
        assert same(found["ours"], found["theirs"])


ROUNDED = ["float64", "float16", "channels last", "unused", "frozen before"]
ROUNDED += ["unused, bucket views", "frozen in mid-training", "frozen, zeros kept in views"]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_wrapped_hook_trains_all_ranks_alike(two_workers: World, name: str) -> None:
    """torch's wrapper hands the hook another buffer, of another type."""
    loop = replace(LOOPS[name], compressor=EF4, hook=True)
    expected = played(two_workers, loop)
    found = played(two_workers, replace(loop, early=True, wrapper=bf16_compress_wrapper))
    for one, other in zip(expected, found, strict=True):
        for means, close in zip(one["means"], other["means"], strict=True):
            for tensor, mean in means.items():
                other_mean = close[tensor]
                assert (mean is None) == (other_mean is None), tensor
                assert mean is None or bool(mean.any()) == bool(other_mean.any()), tensor
        assert one["saved"]["ledger"]["payload_bytes"] == other["saved"]["ledger"]["payload_bytes"]


def test_a_hook_of_halves_has_the_values_of_torchs_hook(two_workers: World) -> None:
    for found in two_workers(loops.torchs_and_our_halves):
        assert same(found["ours"], found["theirs"])


def test_backward_raises_what_goes_wrong_in_a_hook_and_the_next_step_is_sound(
    two_workers: World,
) -> None:
    loop = Loop("float32", EF4, hook=True, steps=6)
    caught = played(two_workers, replace(loop, overflows=(1, 2)))
    left_out = played(two_workers, replace(loop, leaves_out=2))
    for one, other in zip(caught, left_out, strict=True):
        assert re.match(
            r"gradient: the gradient is not finite at step 3 \(.*rank 1: \w+.*HookState\(on_nonf",
            one["message"],
        )
        assert set(one["own"][2].values()) == {None}
        assert same(one["states"][2], one["states"][1])
        assert same(one["means"][3:], other["means"][3:])
        assert same(one["parameters"], other["parameters"])
    hidden = [loops.Hidden(Uniform(bits)) for bits in (8, 4)]
    differ = [Loop("float32", one, hook=True, settings=CHECKED) for one in hidden]
    for said in two_workers(played_by_ranks, differ):
        assert said.startswith("RanksDisagree: rank 1 is about to ask for: gather gradient")


def test_a_closed_hook_averages_as_plain_ddp(two_workers: World) -> None:
    for found in two_workers(loops.closed_hook):
        assert same(found["closed"], found["plain"])


def test_a_hook_that_is_made_before_ddp_sees_the_module_as_ddp_has_it(two_workers: World) -> None:
    """Moved, converted, frozen, and inside another module in between."""
    for late, early in two_workers(loops.changed_before_ddp):
        assert same(early, late)


def test_a_hook_that_is_made_before_ddp_resumes_bit_for_bit(two_workers: World) -> None:
    for whole, resumed in two_workers(loops.resumed_before_ddp):
        assert same(resumed, whole)


def test_a_module_that_is_wrapped_again_keeps_its_residuals(two_workers: World) -> None:
    for whole, again, said in two_workers(loops.wrapped_again):
        assert same(again, whole)
        assert re.match("UserError: state: its module was wrapped in DDP again, and", said)


def test_a_hook_that_is_closed_before_its_first_step_averages_as_plain_ddp(
    two_workers: World,
) -> None:
    for found in two_workers(loops.closed_before_ddp):
        assert same(found["closed"], found["plain"])


REFUSED_HOOKS = {
    "hook_of_an_unknown_scaler": r"scaler: the loss .*; give it to HookState\(scaler=scaler\)",
    "hook_of_no_scaler": "scaler: a torch.amp.GradScaler or None, got float",
    "hook_of_halves_scaled": "scaler: fp16_compress_wrapper .*; use bf16_compress_wrapper, or none",
    "early_hook_of_nothing": "model: HookState takes a Dist.* or the module that DDP will wrap, got li",
    "early_hook_not_registered": r"state: it is not the model's hook; call model.register_comm_hook\(",
    "early_hook_of_a_copy": "state: it was made for a module that DDP had wrapped already, or for anoth",
    "early_hook_that_is_late": "state: it was made for a module that DDP had wrapped already, or for an",
    "early_hook_of_a_part": "state: outer.weight of the DDP model is no parameter of the module for",
    "early_hook_of_sparse_gradients": "model: 0.weight has sparse gradients.*sparse=False$",
    "early_hook_without_all_buckets": r"comm_hook: every step needs every bucket.*use attach\(model, c",
    "early_hook_with_another_ranks_state": r"rank: the state was saved by rank 0.* loads .*\(rank 1\)$",
    "early_hook_at_the_end_of_no_epoch": "state.end_epoch: no step was taken yet; call it after an epoc",
    "hook_with_doubled_momentum": "optimizer.momentum: block_momentum applies momentum on the workers",
    "hook_of_a_grown_model": "model: body.bias was added after the .*, and attach$",
    "hook_of_none": "state: comm_hook takes a HookState, got NoneType; call",
    "hook_not_registered": r"state: it is not the model's hook; call model.register_comm_hook\(",
    "hook_of_another_model": "state: it was made for another model",
    "hook_with_a_step": "state.step: comm_hook calls it at the end",
    "hook_without_no_sync": "backward: it has added to the means .* `with model.no_sync",
    "hook_with_a_graph_twice": r"backward: one was not exchanged, .*; add the losses for one backward",
    "hook_that_clips": r"compressor: clip_local .* comm_hook sends .*; use attach\(model, comp",
    "hook_with_samples": "policy: GraVAC weighs the samples .*; use attach",
    "hook_with_a_late_plan": "comm_hook: plans are needed .*; use attach.* or decide=last",
    "hook_of_an_unknown_habit": "on_nonfinite: one of raise, skip, got 'ignore'",
}


@pytest.mark.parametrize("mistake", REFUSED_HOOKS)
def test_a_mistake_with_a_hook_is_one_line(two_workers: World, mistake: str) -> None:
    for said in two_workers(getattr(loops, mistake)):
        assert re.match(f"UserError: {REFUSED_HOOKS[mistake]}", said), said
        assert "\n" not in said


PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-loop.md"
PIECES = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
assert len(PIECES) == 8, "a section has no piece of code, or a new one"


@pytest.mark.parametrize("code", PIECES, ids=range(len(PIECES)))
def test_a_piece_of_the_page_trains_all_ranks_alike(
    two_workers: World, tmp_path: Path, code: str
) -> None:
    first, second = two_workers(loops.piece_of_a_page, code, str(tmp_path))
    assert same(first, second)


# Refusals.

DIFFER = {
    "seed": r"seed: it differs between ranks: 3 \(rank 0\), 4 \(rank 1\); give all the same",
    "compressor": r"compressor: it differs .*density=0.1.*\(rank 0\), .*density=0.2.*\(rank 1\);",
    "policy": r"policy: it differs between ranks: Fixed\(.* \(rank 1\);",
    "unit": r"unit: it differs between ranks: 'layer' \(rank 0\), 'model' \(rank 1\);",
    "overlap": r"overlap: it differs between ranks: False \(rank 0\), True \(rank 1\);",
    "on_nonfinite": r"on_nonfinite: it differs .* 'raise' \(rank 0\), 'skip' \(rank 1\);",
    "check": r"check: it differs between ranks: True \(rank 0\), False \(rank 1\);",
    "scaler": r"scaler: it differs between ranks: False \(rank 0\), True \(rank 1\);",
    "model": r"model: it differs .*: layers.1.bias \[6\] float32 \(rank 0\), none \(rank 1\);",
}


@pytest.mark.parametrize(
    ("way", "argument"),
    [
        (way, argument)
        for way in ("attach", "hook")
        for argument in DIFFER
        if way == "attach" or argument not in ("unit", "overlap")
    ],
)
def test_ranks_that_are_given_different_arguments_are_told_so_at_once(
    two_workers: World, argument: str, way: str
) -> None:
    for said in two_workers(loops.attached_with_other_arguments, argument, way):
        assert re.match(f"UserError: {DIFFER[argument]}", said), said


MISTAKEN = {
    "unit": "unit: one of layer, model, got 'tensor'",
    "overlap": "overlap: true or false, got 'yes'",
    "on_nonfinite": "on_nonfinite: one of raise, skip, got 'ignore'",
    "scaler": "scaler: a torch.amp.GradScaler or None, got float",
    "no object": r"compressor: TopK is a class; give an object, such as .*\)",
    "rungs": "policy: plans 1 rungs .*, the ladder has 2; .*",
    "no DDP": "model: attach takes a DistributedDataParallel model.*, got Linear; wrap it first",
    "sharded": "model: with mesh, attach takes .*, got DistributedDataParallel",
    "attached twice": r"model: a compressor is attached to it already; .*",
    "hook": r"compressor: TopK is a class; give an object, such as .*\)",
}


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_all_ranks_are_told_of_a_mistake_that_one_makes(two_workers: World, mistake: str) -> None:
    for rank, (said, again) in enumerate(two_workers(loops.mistaken_on_one_rank, mistake)):
        # Of no DDP model the rank does not know its group, so that it says its mistake at once.
        whose = "" if mistake == "no DDP" and rank == 1 else r" \(rank 1\)"
        assert re.fullmatch(rf"UserError: {MISTAKEN[mistake]}{whose}", said), said
        assert again == "nothing"


def test_a_hook_on_one_rank_and_attach_on_another_are_told_apart(two_workers: World) -> None:
    for said, again in two_workers(loops.mistaken_on_one_rank, "hook or attach"):
        assert re.match(
            r"UserError: call: it differs between ranks: 'attach' \(rank 0\), 'Hoo", said
        )
        assert again == "nothing"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_head_that_ranks_train_alone_is_left_alone(two_workers: World, overlap: bool) -> None:
    assert two_workers(loops.trained_alone, overlap) == ["kept=True"] * 2


def test_a_rank_that_does_not_attach_is_named_and_may_attach_later(three_workers: World) -> None:
    told = three_workers(loops.without_attach)
    for rank, (said, took, again, means) in enumerate(told):
        assert again == "nothing"
        assert same(means, told[0][3])
        if rank != 1:
            assert re.match(
                r"UserError: attach: rank 1 did not call attach within 0\.5 s \(", said
            ), said
            assert took < 5.0


BOTH, AFTER, BUCKET = OVERLAP, OVERLAP[:1], OVERLAP[1:]
REFUSED = [
    (
        "no_object",
        BOTH,
        r"compressor: TopK is a class; give an object, such as ErrorFeedback\(TopK",
    ),
    ("sparse", BOTH, r"model: 0\.weight has sparse gradients.* sparse=False"),
    (
        "no_ddp",
        BOTH,
        "model: attach takes .*, or one that fully_shard has sharded, got Linear; wrap",
    ),
    ("hooked", BOTH, "model: it has a communication hook already"),
    ("unknown_overlap", AFTER, "overlap: true or false"),
    ("unknown_unit", AFTER, "unit: one of layer, model, got 'tensor'"),
    ("unit_of_model", BUCKET, "overlap=true: each bucket is sent"),
    ("decides_now", BUCKET, ".*use overlap=false or decide=last"),
    ("attached_twice", BOTH, r"model: a compressor is attached to it already; call detach\(\)"),
    (
        "backward_twice",
        BUCKET,
        r"overlap=true: the gradients of a .* `with model.no_sync\(\):`",
    ),
    ("graph_twice", BUCKET, r"overlap=true: a backward came .*; add the losses for one backward,"),
    ("no_step_without_sync", BOTH, r"exchange.step: it was not called between backward and opt"),
    ("no_step_by_hand", AFTER, "exchange.step: parameters have changed since backward, and it"),
    (
        "no_step_by_hand",
        BUCKET,
        r"overlap=true: the gradients of .* before exchange.step\(\); call",
    ),
    (
        "doubled_momentum",
        BOTH,
        r"optimizer.momentum: block_momentum applies momentum on the workers "
        r"\(block_momentum.momentum=0.9\), got 0.9 here too; use momentum=0$",
    ),
    (
        "momentum_of_dion",
        BOTH,
        r"optimizer.momentum: the residual of dion is its momentum .*0\.95\), got 0.9 here too; use",
    ),
    ("no_step_in_closure", BOTH, "exchange.step: it was not called between backward and optimizer"),
    (
        "step_twice_in_an_accumulation",
        BOTH,
        "exchange.step: backward has added to the means of the",
    ),
    ("step_twice", AFTER, "exchange.step: it was called twice after one backward"),
    ("step_twice", BUCKET, r"overlap=true: there was no whole .* exchange.step\(\) once a step"),
    ("step_after_zero_grad", BOTH, "exchange.step: no parameter has a gradient on any rank; call"),
    ("dropped", BOTH, r"exchange.step: it was not called between backward and optimizer.step\(\)"),
    ("no_step", BOTH, r"exchange.step: it was not called between backward and optimizer.step\(\)"),
    ("uneven", BOTH, "model.join: a rank that has run out of batches .* drop_last=True"),
    ("really_uneven", BOTH, "model.join: a rank that has run out of batches .* drop_last=True"),
    (
        "batches_compared",
        BOTH,
        r"batches: it differs between ranks: 3 \(rank 0\), 4 \(rank 1\); give all ranks the same number",
    ),
    ("thawed_before_attaching", BUCKET, "model: body.bias was frozen when the module was wrapped"),
    (
        "thawed_on_one_rank",
        BOTH,
        r"model: body.weight was frozen when .*, and attach \(rank 1\)$",
    ),
    ("thawed", BOTH, "model: body.weight was frozen when .*; detach, wrap the module in DDP again"),
    (
        "grown",
        BOTH,
        "model: body.bias was added after the compressor was attached and has a gradient, which no exchange "
        "averages; name it in the module's _ddp_params_and_buffers_to_ignore if ranks train it alone, or "
        "detach, wrap the module in DDP again, and attach",
    ),
    ("grown_on_one_rank", BOTH, r"model: body.bias was added after .*, and attach \(rank 1\)$"),
    ("one_vector", AFTER, "unit: model joins .*, and idle.bias has received none .* unit=layer"),
    (
        "narrow_means",
        BOTH,
        r"compressor: mean has shape \[1\], the tensor \[6(, 6)?\]: use .view\(tensor.shape\)$",
    ),
    ("used_after_detaching", BOTH, "exchange: it was detached from its model"),
    ("scaled", BUCKET, r"scaler: overlap=true has sent .*; give it to attach\(scaler=scaler\)"),
    (
        "scaled_by_an_unknown",
        BUCKET,
        r"scaler: the loss was scaled by a GradScaler .*; give it to attach\(scaler=scaler\)",
    ),
    ("scaled_by_an_unknown", AFTER, r"scaler: .* exchange.step\(scaler=scaler\) each step$"),
    ("unscaled_first", AFTER, r"scaler: .* call scaler.unscale_\(optimizer\) after"),
    ("samples_untold", BOTH, r"samples: GraVAC weighs .*; call exchange.step\(samples=...\)"),
    ("samples_untold_by_one_rank", BOTH, r"samples: GraVAC weighs .* batch \(rank 1\)$"),
    ("rate_untold", BOTH, "learning_rate: Accordion looks at its decay; give EpochReport"),
]


@pytest.mark.parametrize(
    ("mistake", "overlap", "message"),
    [(mistake, overlap, text) for mistake, kinds, text in REFUSED for overlap in kinds],
)
def test_what_cannot_go_right_is_refused_in_one_line(
    two_workers: World, mistake: str, overlap: bool, message: str
) -> None:
    for said in two_workers(getattr(loops, mistake), overlap):
        assert re.match(f"UserError: {message}", said), said
        assert "\n" not in said
        assert not re.search(r"\b(exchange\.(overlap|unit|aggregation)|train\.|launch\.)", said), (
            said
        )


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("leaves", [True, False])
def test_ranks_with_different_numbers_of_batches_are_told_so(overlap: bool, leaves: bool) -> None:
    world = World(2, seconds=2)  # of its own: a collective that has failed ends a process group
    try:
        first, second = world(loops.out_of_batches, overlap, leaves)
    finally:
        world.stop()
    fix = "give all ranks the same number of batches, with drop_last=True"
    if leaves:
        assert first == "nothing"
        told = "rank 0 takes no part in step 3; it has ended or does something else: "
    else:
        told = "ranks have taken different numbers of steps: 2 (rank 0), 3 (rank 1); "
        assert first.startswith(f"exchange.step: {told}{fix}"), first
    assert second.startswith(f"CollectiveFailed: exchange.step: {told}{fix}"), second
    assert "\n" not in first + second


@pytest.mark.parametrize(
    "job", ["backward_twice", "graph_twice", "scaled", "thawed_before_attaching"]
)
def test_what_is_refused_per_bucket_is_fine_after_backward(two_workers: World, job: str) -> None:
    assert two_workers(getattr(loops, job), False) == ["nothing"] * 2


@pytest.mark.parametrize("overlap", OVERLAP)
def test_a_detached_model_is_plain_ddp_and_can_be_attached_again(
    two_workers: World, overlap: bool
) -> None:
    for found in two_workers(loops.detached, overlap):
        assert found["dropped"]
        assert same(found["detached"], found["plain"])
        assert same(found["again"], found["plain"])


@pytest.mark.parametrize("overlap", OVERLAP)
def test_the_ranks_are_those_of_the_models_process_group(two_workers: World, overlap: bool) -> None:
    first, second = two_workers(loops.within_a_group, overlap)
    assert same(first["mean"], first["own"])
    assert same(second["mean"], second["own"])
    assert not same(first["own"], second["own"])


@pytest.mark.parametrize("overlap", OVERLAP)
def test_metrics_have_the_columns_of_a_record_without_a_collective(
    two_workers: World, overlap: bool
) -> None:
    for found, ledger, calls in two_workers(loops.metrics_by_step, overlap):
        assert calls == 0
        before, *steps = found
        assert before == {"comm/payload_bytes": 0, "comm/wire_bytes": 0.0}
        sums = [step["comm/payload_bytes"] for step in steps]
        assert sums == sorted(set(sums))
        assert sums[-1] == ledger["comm/payload_bytes"]
        assert steps[-1]["comm/wire_bytes"] == ledger["comm/wire_bytes"]
        assert all(step["policy/rung"] in range(4) for step in steps)
        times = [sorted(name for name in step if name.startswith("time/")) for step in steps]
        assert times[:3] == [[]] * 3  # the warm-up
        spans = ("communicate", "compress", "decompress")
        assert times[3:] == [[f"time/{name}_ms" for name in spans]] * 3


@pytest.mark.parametrize("overlap", OVERLAP)
def test_the_rung_of_metrics_is_that_of_the_last_step(two_workers: World, overlap: bool) -> None:
    """`end_epoch` plans the next step, whose rung is no part of a log before that step."""
    assert two_workers(loops.rungs_around_an_epoch, overlap) == [[2, 2, 1, 1]] * 2


@pytest.mark.parametrize(
    ("overlap", "norm"),
    [(False, "mean"), (True, "mean"), (False, "own")],
)
def test_accordion_is_told_the_norms_that_it_watches(
    two_workers: World, overlap: bool, norm: str
) -> None:
    first, second = two_workers(loops.accordion, overlap, norm)
    assert first == second
    num_high, norms = first
    assert num_high == len(norms) == 4
    assert all(norms.values())
