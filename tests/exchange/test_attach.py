"""For every model that plain DDP can train: `attach` gives the right result, or refuses in one line.

Exactness. Two workers: a sum of two numbers is the same in any order, so that every comparison here is
bit for bit. With more workers `Mean` is equal to rounding (docs/architecture.md, worlds).
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import loops
import pytest
import torch
from everyday import everyday
from jobs import assert_alike, same
from loops import APART, EF4, LADDER, MODELS, OVERLAP, Loop, gravac
from processes import World as Ranks
from samples import AtLeast, Fragile
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange, in_memory_order
from dgc_repro.exchange.world import World

EF4_RANDOM = D.ErrorFeedback(D.Uniform(4, "stochastic", 50))
LOOPS = {name: Loop(name, None, steps=8) for name in MODELS} | {
    "accumulated": Loop("mixed", None, micro_steps=3),
    "bucket views": Loop("mixed", None, view=True),
    "unused, bucket views": Loop("unused", None, steps=8, view=True),
    "unused, wide, bucket views": Loop("unused, wide", None, steps=8, view=True),
    "unused, accumulated": Loop("unused", None, steps=8, micro_steps=2),
    "frozen before": Loop("float32", None, frozen=True),
    "frozen in mid-training": Loop("float32", None, steps=9, freezes=(3, 6)),
    "frozen, zeros kept": Loop("float32", None, steps=9, freezes=(3, 6), set_to_none=False),
    "frozen, zeros kept in views": Loop(
        "float32", None, steps=9, freezes=(3, 6), set_to_none=False, view=True
    ),
}
COMPRESSORS: dict[str, Compressor] = {
    "topk": D.TopK(0.1),
    "topk fed back": D.ErrorFeedback(D.TopK(0.1)),
    "uniform": D.PerLayer(EF4),
    "directions": D.PerLayer(D.ErrorFeedback(D.Dion(0.3))),
}
CONVERTED = [name for name in LOOPS if "frozen" not in name]


def played(world: Ranks, loop: Loop) -> list[dict[str, Any]]:
    """Every rank's story; parameters must be alike on all ranks."""
    stories = world(loops.play, loop)
    for story in stories:
        assert same(story["parameters"], stories[0]["parameters"]), "replicas drift"
        assert all(bool(p.isfinite().all()) for p in story["parameters"].values())
    return stories


@pytest.mark.parametrize("name", LOOPS)
def test_the_uncompressed_baseline_is_plain_ddp_bit_for_bit(two_workers: Ranks, name: str) -> None:
    loop = LOOPS[name]
    plain = played(two_workers, loop)[0]
    ways = [replace(loop, overlap=overlap) for overlap in OVERLAP]
    if name in ("float32", "channels last", "frozen before"):
        ways.append(replace(loop, unit="model"))
    for way in ways:
        ours = played(two_workers, replace(way, compressor=D.Dense()))[0]
        assert same(ours["parameters"], plain["parameters"]), way
        assert same(ours["means"], plain["means"]), way  # None where plain DDP has none
        if loop.frozen:
            sent = 4 * sum(mean.numel() for mean in ours["means"][0].values() if mean is not None)
            assert ours["saved"]["ledger"]["payload_bytes"] == loop.steps * sent, way


def test_large_gradients_are_averaged_where_they_lie(two_workers: Ranks) -> None:
    small, large = 1000, 1030  # 4.0 and 4.2 MB
    assert two_workers(loops.bytes_of_buffers, small) == [4 * small * (6 + 1 + small + 1)] * 2
    assert two_workers(loops.bytes_of_buffers, large) == [4 * large * (6 + 1 + 1)] * 2


@pytest.mark.parametrize(
    ("name", "compressor"),
    everyday(
        product(CONVERTED, COMPRESSORS),
        *((name, "topk fed back") for name in CONVERTED),
        *(("float32", compressor) for compressor in COMPRESSORS),
    ),
)
def test_means_are_the_simulated_worlds(two_workers: Ranks, name: str, compressor: str) -> None:
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
    for residual in by_bucket[0]["states"][-1].get("residual", {}).values():
        assert residual.dtype == torch.float32


def simulated(
    compressor: Compressor | None, own: list[list[dict[str, Tensor | None]]]
) -> list[dict[str, Tensor]]:
    """The means of simulated workers with these gradients in float32, without those that no worker has.
    What `PerLayer` leaves out is averaged in its own type."""
    assert compressor is not None

    def exchanged(gradient: Tensor) -> Tensor:
        real = in_memory_order(gradient.clone())
        return real if isinstance(compressor, D.PerLayer) and real.dim() < 2 else real.float()

    first = {n: g for step in own[0] + own[1] for n, g in step.items() if g is not None}
    # `idle` is never used: zeros of any shape will do.
    whole = {name: exchanged(first.get(name, torch.zeros(6, 6))) for name in own[0][0]}
    exchange = Exchange(compressor, whole, World(2))
    found = []
    for gradients in zip(*own, strict=True):
        present = [n for n in whole if any(worker[n] is not None for worker in gradients)]
        filled: list[dict[str, Tensor]] = [{}, {}]
        for worker, of_worker in enumerate(gradients):
            for name in present:
                gradient = of_worker[name]
                zeros = torch.zeros_like(whole[name])
                filled[worker][name] = zeros if gradient is None else exchanged(gradient)
        exchange.average(filled)
        found.append({name: mean.clone() for name, mean in filled[0].items()})
    return found


ALIKE = {
    "one round": Loop("float32", EF4),
    "random, channels last": Loop("channels last", EF4_RANDOM),
    "two rounds": Loop("float32", D.ErrorFeedback(D.PowerSGD(1))),
    "ragged": Loop("float32", AtLeast(0.01)),
    "a ladder's two rounds": Loop(
        "float32", D.Ladder((D.PowerSGD(1), EF4)), settings={"policy": D.Fixed("any", (1,))}
    ),
    "accumulated": Loop("float32", EF4, micro_steps=3),
    "shards": Loop("float32", D.ErrorFeedback(D.Sharded(D.Uniform(4, "stochastic", 16)))),
    "ragged shards": Loop("float32", D.ErrorFeedback(D.Sharded(D.TopK(0.1)))),
    "gravac a step later": Loop("float32", LADDER, steps=8, settings={"policy": gravac()}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_junctions_and_resuming_train_alike(two_workers: Ranks, name: str, tmp_path: Path) -> None:
    """Each rank loads its own state, or all load a checkpoint of torch.distributed or one file."""
    loop = ALIKE[name]
    bucket = replace(loop, overlap=True)
    after = played(two_workers, loop)
    resumed = [
        replace(one, resume_at=at, form=form, folder=str(tmp_path))
        for one, at in ((bucket, 3), (loop, 2))
        for form in ("own", "by_rank", "gathered")
    ]
    for other in (bucket, *resumed):
        stories = played(two_workers, other)
        assert_alike(after, stories, "means", "states", "parameters")
        for one, two in zip(after, stories, strict=True):
            first, second = one["saved"], two["saved"]
            assert same(first["exchange"], second["exchange"])
            if not other.overlap:
                assert first["ledger"] == second["ledger"]
            elif "gravac" not in name:  # whose decision for the next step travels with each bucket
                assert first["ledger"]["payload_bytes"] == second["ledger"]["payload_bytes"]
            for key in ("last", "next", "gains", "theta_min", "candidate"):
                assert first["policy"].get(key) == second["policy"].get(key), (key, other)
            if other.overlap:
                assert len(two["buckets"]) > loop.steps, "one bucket a step shows nothing"
    if name == "one round":
        assert not same(after[0]["states"], after[1]["states"]), "a residual is a worker's own"


def test_three_workers_agree(three_workers: Ranks) -> None:
    loop = Loop("float32", EF4)
    during, after = (played(three_workers, replace(loop, overlap=way))[0] for way in OVERLAP)
    assert same(during["parameters"], after["parameters"])


# Steps that go wrong, and layers that stand still.


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_layer_frozen_in_mid_training_stands_still_and_its_residual_waits(
    two_workers: Ranks, overlap: bool, view: bool, set_to_none: bool
) -> None:
    loop = Loop("float32", EF4, overlap, steps=8, freezes=(3, 6), view=view)
    loop = replace(loop, set_to_none=set_to_none)
    for story in played(two_workers, loop):
        for step in range(3, 6):
            mean = story["means"][step]["layers.0.weight"]
            assert mean is None if set_to_none else not mean.any()
            states = [story["states"][s]["residual"]["layers.0.weight"] for s in (2, step)]
            assert states[0].any()
            assert torch.equal(*states)
        assert story["means"][6]["layers.0.weight"].any()


def test_a_scaled_loop_is_that_of_plain_ddp_overflow_included(two_workers: Ranks) -> None:
    plain = Loop("float32", None, steps=8, scaled=True, overflows=(1, 4))
    stock, ours = (
        played(two_workers, loop) for loop in (plain, replace(plain, compressor=D.Dense()))
    )
    assert same(ours[0]["parameters"], stock[0]["parameters"])
    assert ours[0]["scales"] == ours[1]["scales"] == stock[0]["scales"]
    assert ours[0]["scales"][3:5] == [1024, 512]


def test_an_overflow_leaves_residuals_alone_and_the_scale_no_trace(two_workers: Ranks) -> None:
    loop = Loop("float32", EF4, steps=8, scaled=True, overflows=(1, 4))
    for story in played(two_workers, loop):
        assert same(story["states"][4], story["states"][3])
        assert not same(story["states"][5], story["states"][4])
        assert all(bool(torch.isinf(g).all()) for g in story["means"][4].values())
    calm = replace(loop, overflows=None)
    unscaled = replace(calm, scaled=False)
    assert same(*(played(two_workers, one)[0]["parameters"] for one in (calm, unscaled)))


SCALED_LOOPS = {
    "float32": Loop("float32", EF4),
    "unused": Loop("unused", EF4),
    "accumulated": Loop("float32", EF4, micro_steps=3),
    "frozen in the overflow, zeros kept": Loop("unused", EF4, freezes=(4, 5), set_to_none=False),
}


@pytest.mark.parametrize(
    ("name", "view"),
    everyday(
        product(SCALED_LOOPS, (False, True)),
        ("float32", False),
        *((name, True) for name in SCALED_LOOPS),
    ),
)
def test_a_growing_scale_trains_both_ways_alike(two_workers: Ranks, name: str, view: bool) -> None:
    """Bit for bit, with an overflow on one rank. A scale is a power of 2."""
    loop = replace(SCALED_LOOPS[name], steps=9, scaled=True, overflows=(1, 4), grows_every=2)
    expected = played(two_workers, loop)
    assert expected[0]["scales"][:6] == [1024, 2048, 2048, 4096, 2048, 2048]
    found = played(two_workers, replace(loop, overlap=True, view=view))
    assert_alike(expected, found, "means", "states", "parameters")
    assert [one["scales"] for one in found] == [one["scales"] for one in expected]


SKIP = {"on_nonfinite": "skip"}
WAYS: list[dict[str, Any]] = [{}, {"overlap": True}, {"sends_first": True}]
NOT_FINITE = [
    *(Loop("float32", c, **way) for c in (EF4, D.Dense()) for way in WAYS),
    Loop("float32", D.ErrorFeedback(AtLeast(0.5)), sends_first=True),
    *(Loop("float32", Fragile(), sends_first=first) for first in (False, True)),
    *(Loop("channels last", EF4, settings=SKIP, **way) for way in WAYS),
]


@pytest.mark.parametrize("loop", NOT_FINITE)
def test_a_step_that_is_not_finite_is_as_if_left_out(two_workers: Ranks, loop: Loop) -> None:
    """It is refused on all ranks, or skipped; also of a compressor that fails on a NaN before it asks for
    anything. Where payloads are sent before the signals are read, that rank sends zeros."""
    loop, skips = replace(loop, steps=6), bool(loop.settings)
    caught = played(two_workers, replace(loop, overflows=(0 if skips else 1, 2)))
    left_out = played(two_workers, replace(loop, leaves_out=2))
    assert_alike(caught, left_out, "parameters", "buffers")
    (said,) = {story["message"] for story in caught}
    named = re.match(r"gradient: the gradient is not finite at step 3 \(.*rank 1: \w+", said)
    assert said == "" if skips else named
    assert skips or loop.overlap or "rank 0" not in said
    for one, other in zip(caught, left_out, strict=True):
        assert one["applied"] == [True, True, False, True, True, True]
        assert same(one["states"][2], one["states"][1])
        assert set(one["means"][2].values()) == {None}
        assert same(one["means"][3:], other["means"][3:])
        assert all(bool(buffer.isfinite().all()) for buffer in one["buffers"])


def test_a_refused_step_leaves_no_mean_for_a_bucket_that_ddp_remakes(two_workers: Ranks) -> None:
    loop = Loop("float32", EF4, True, static=True, view=True, overflows=(1, 0))
    for story in played(two_workers, loop):
        for means in story["means"][1:]:
            assert all(bool(mean.isfinite().all()) for mean in means.values())


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("late", [False, True])
def test_backward_raises_what_a_method_raises(
    two_workers: Ranks, overlap: bool, late: bool
) -> None:
    for said, averages, sent in two_workers(loops.broken, overlap, late):
        assert said[2] == "ZeroDivisionError: broken on purpose"
        assert said[3].startswith("UserError: backward: one was not exchanged")
        assert said[:2] + said[4:] == ["nothing"] * 6
        assert averages
        assert late or sent[2] == sent[3] == sent[0], "what had been asked for is forgotten"


@pytest.mark.parametrize("overlap", OVERLAP)
def test_what_attach_returns_need_not_be_kept(two_workers: Ranks, overlap: bool) -> None:
    assert two_workers(loops.dropped, overlap) == [True, True]


@pytest.mark.parametrize("name", ["mixed", "unused", "frozen in mid-training"])
def test_payloads_that_are_sent_first_train_alike(two_workers: Ranks, name: str) -> None:
    loop = replace(LOOPS[name], compressor=EF4)
    after, before = (
        played(two_workers, replace(loop, sends_first=first)) for first in (False, True)
    )
    assert_alike(after, before, "means", "states", "parameters")
    if name == "mixed":  # what no rank has travels where the ranks have not agreed
        assert [one["saved"]["ledger"] for one in after] == [
            one["saved"]["ledger"] for one in before
        ]


TWO_STEPS = (
    *(
        "evaluated_in_between",
        "accumulated",
        "perturbed",
        "checkpointed",
        "never_zeroed",
        "adversarial",
    ),
    "last_backward_in_a_closure",
)
LEGAL = dict.fromkeys(TWO_STEPS, 2) | {"left_out_by_hand": 3, "trained_alone": 1, "rate_told": 1}
LEGAL |= dict.fromkeys(("with_closures", "renormalized"))


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("name", LEGAL)
def test_loops_that_keep_the_rule_are_allowed(two_workers: Ranks, name: str, overlap: bool) -> None:
    first, second = two_workers(loops.loop_of, name, overlap)
    assert first[0] == second[0] == "nothing"
    assert LEGAL[name] in (None, first[1])
    assert same(first[2], second[2]), "replicas drift"


@pytest.mark.parametrize("overlap", OVERLAP)
def test_copies_and_a_detached_model_are_plain_ddp(two_workers: Ranks, overlap: bool) -> None:
    for told, again in two_workers(loops.copies, overlap):
        for name, found in told.items():
            assert same(found, told["plain"]), name
        assert same(again["copy"], again["original"])


def test_a_model_whose_buffers_are_kept_is_freed(two_workers: Ranks) -> None:
    assert two_workers(loops.freed_after_an_evaluation) == [True, True]


def test_a_hook_of_halves_has_the_values_of_torchs_hook(two_workers: Ranks) -> None:
    for found in two_workers(loops.torchs_and_our_halves):
        assert same(found["ours"], found["theirs"])


PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-loop.md"
PIECES = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
assert len(PIECES) >= 4, "a section has lost its piece of code"


@pytest.mark.parametrize("code", PIECES, ids=range(len(PIECES)))
def test_a_piece_of_the_page_trains_alike(two_workers: Ranks, tmp_path: Path, code: str) -> None:
    first, second = two_workers(loops.piece_of_a_page, code, str(tmp_path))
    assert same(first, second)


# Refusals.


@pytest.mark.parametrize("name", APART)
def test_all_ranks_are_told_of_a_wrong_argument_of_one(two_workers: Ranks, name: str) -> None:
    for rank, (said, again) in enumerate(two_workers(loops.attached_apart, name)):
        assert re.match(f"UserError: {APART[name][1]}", said), said
        # Without DDP the rank does not know its group, so that it says its mistake at once.
        assert ("(rank 1)" in said) != (name == "no DDP" and rank == 1)
        assert again == "nothing"


@pytest.mark.parametrize(
    ("compressor", "width"),
    [(D.Dense(), 300), (D.Dense(), 1030), (COMPRESSORS["uniform"], 300)],
    ids=str,
)
def test_a_fresh_ddp_continues(three_workers: Ranks, compressor: Compressor, width: int) -> None:
    """DDP cuts its buckets anew after its first step, and sums of three depend on the place in them."""
    for whole, continued in three_workers(loops.continued_in_a_fresh_ddp, compressor, width):
        assert same(whole, continued)


def test_a_rank_that_does_not_attach_is_named_and_may_attach_later(three_workers: Ranks) -> None:
    told = three_workers(loops.without_attach)
    for rank, (said, before, took, again, means) in enumerate(told):
        assert again == "nothing"
        assert same(means, told[0][4])
        if rank != 1:
            assert re.match(
                r"UserError: attach: rank 1 did not call attach within 0\.5 s; call", said
            ), said
            waits = f"dgc_repro: rank {rank} waits for rank 1, at most 0.5 s; all ranks that train"
            assert before.startswith(waits)
            assert before.count("\n") == 1
            assert took < 5.0


AFTER, BUCKET = BOTH = ((False, False), (True, False))
ALL = (*BOTH, (False, True))
"""Whether a loop overlaps, and whether payloads travel before the ranks have agreed, as on a GPU."""
REFUSED = [
    ("a_name", BOTH, "compressor: topk is a name; give an object, such as"),
    ("sparse", BOTH, "model: weight has sparse gradients.* sparse=False"),
    ("hooked", BOTH, "model: it has a communication hook already"),
    ("unit_of_model", (BUCKET,), "overlap=true: each bucket is sent"),
    ("decides_now", (BUCKET,), ".*use overlap=false or decide=last"),
    ("backward_twice", BOTH, r"backward: it has added to the means .* `with model.no_sync\(\):`"),
    ("added_on_one_rank", BOTH, r"backward: it has added to the means .* before it \(rank 1\)$"),
    ("graph_twice", BOTH, "backward: one was not exchanged, .*; add the losses for one backward,"),
    ("never_synced", BOTH, "backward: one was not exchanged, .* outside no_sync"),
    ("calls_step", BOTH, r"exchange.step: backward\(\) has exchanged .*; delete this call \("),
    (
        "doubled_momentum", BOTH,
        r"optimizer.momentum: block_momentum applies momentum on the workers "
        r"\(block_momentum.momentum=0.9\), got 0.9 here too; use momentum=0$",
    ),
    (
        "momentum_of_dion", BOTH,
        r"optimizer.momentum: the residual of dion is its momentum .*0\.95\), got 0.9 here too; use",
    ),
    ("uneven", BOTH, "model.join: a rank that has run out of batches .* drop_last=True"),
    ("batches_compared", BOTH, r"batches: it differs .*: 3 \(rank 0\), 4 \(rank 1\); give all ranks"),
    ("thawed_before_attaching", (BUCKET,), "model: body.bias was frozen when the module was wrapped"),
    ("thawed_on_one_rank", ALL, r"model: body.weight was frozen when .*, and attach \(rank 1\)$"),
    (
        "grown", ALL,
        "model: body.bias was added after the compressor was attached and has a gradient, which no exchange "
        "averages; name it in the module's _ddp_params_and_buffers_to_ignore if ranks train it alone, or "
        r"detach, wrap the module in DDP again, and attach \(rank 1\)$",
    ),
    ("one_vector", (AFTER,), "unit: model joins .*, and idle.bias has received none .* unit=layer"),
    ("scaled_by_an_unknown", BOTH, r"scaler: the loss was scaled .*attach\(scaler=scaler\)"),
    ("samples_untold_by_one_rank", ALL, r"samples: GraVAC weighs .*; set exch.* batch \(rank 1\)$"),
    ("rate_untold", BOTH, "learning_rate: Accordion looks at its decay; give EpochReport"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mistake", "overlap", "sends", "message"),
    [(mistake, *way, text) for mistake, ways, text in REFUSED for way in ways],
)
def test_what_cannot_go_right_is_refused_in_one_line(
    two_workers: Ranks, mistake: str, overlap: bool, sends: bool, message: str
) -> None:
    for said in two_workers(loops.told_of, mistake, overlap, sends):
        assert re.match(f"UserError: {message}", said), said
        assert "\n" not in said
        keys = re.search(r"\b(exchange\.(overlap|unit|aggregation)|train\.|launch\.)", said)
        assert not keys, said


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("leaves", [True, False])
def test_ranks_with_different_numbers_of_batches_are_told_so(overlap: bool, leaves: bool) -> None:
    world = Ranks(2, seconds=2)  # of its own: a collective that has failed ends a process group
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
        assert first.startswith(f"backward: {told}{fix}"), first
    assert second.startswith(f"CollectiveFailed: backward: {told}{fix}"), second
    assert "\n" not in first + second


def test_a_failed_collective_in_one_step_suggests_torchs_comparison(two_workers: Ranks) -> None:
    for said, (note,) in two_workers(loops.failed_together):
        assert said == "training: cut off"
        assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in note


def test_a_parameter_that_ddp_does_not_send_is_exchanged_after_backward(two_workers: Ranks) -> None:
    assert two_workers(loops.told_of, "thawed_before_attaching", False) == ["nothing"] * 2


@pytest.mark.parametrize("overlap", OVERLAP)
def test_metrics_have_a_records_columns_and_no_collective(
    two_workers: Ranks, overlap: bool
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
def test_the_rung_of_metrics_is_that_of_the_last_step(two_workers: Ranks, overlap: bool) -> None:
    """`end_epoch` plans the next step, whose rung is no part of a log before that step."""
    assert two_workers(loops.rungs_around_an_epoch, overlap) == [[2, 2, 1, 1]] * 2


@pytest.mark.parametrize(("overlap", "norm"), [(False, "mean"), (True, "mean"), (False, "own")])
def test_accordion_is_told_unscaled_norms(two_workers: Ranks, overlap: bool, norm: str) -> None:
    first, second = two_workers(loops.accordion, overlap, norm, False)
    assert first == second
    num_high, norms = first
    assert num_high == len(norms) == 4
    assert all(norms.values())
    if norm == "mean":
        assert two_workers(loops.accordion, overlap, norm, True) == [first] * 2
