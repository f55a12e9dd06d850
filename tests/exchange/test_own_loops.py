"""For every model that plain DDP can train: the right result, or a refusal in one line.

Exactness. Two workers: a sum of two numbers is the same in any order, so that every comparison here is
bit for bit. With more workers `Mean` is equal to rounding (docs/architecture.md, worlds).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import own_loops
import pytest
import torch
from laws import same
from own_loops import EF4, MODELS, Loop
from processes import World
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange, in_memory_order
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan

JUNCTIONS = ("after_backward", "per_bucket")
LOOPS = {name: Loop(name, None) for name in MODELS} | {
    "accumulated": Loop("mixed", None, micro_steps=3),
    "bucket views": Loop("mixed", None, view=True),
    "unused, bucket views": Loop("unused", None, view=True),
    "unused, accumulated": Loop("unused", None, micro_steps=2),
    "frozen in mid-training": Loop("float32", None, freezes=(5, 12)),
    "frozen, zeros kept": Loop("float32", None, freezes=(5, 12), set_to_none=False),
    "frozen, zeros kept in views": Loop(
        "float32", None, freezes=(5, 12), set_to_none=False, view=True
    ),
}
COMPRESSORS: dict[str, Compressor] = {
    "topk": TopK(0.1),
    "topk fed back": ErrorFeedback(TopK(0.1)),
    "uniform": PerLayer(EF4),
}
CONVERTED = [name for name in LOOPS if "frozen" not in name]


def played(world: World, loop: Loop) -> list[dict[str, Any]]:
    """Every rank's story; parameters must be alike on all ranks."""
    stories = world(own_loops.play, loop)
    for story in stories:
        assert same(story["parameters"], stories[0]["parameters"]), "replicas drift"
        assert all(bool(p.isfinite().all()) for p in story["parameters"].values())
    return stories


@pytest.mark.parametrize("junction", JUNCTIONS)
@pytest.mark.parametrize("name", LOOPS)
def test_the_uncompressed_baseline_is_plain_ddp_bit_for_bit(
    two_workers: World, name: str, junction: str
) -> None:
    plain = played(two_workers, LOOPS[name])[0]
    ours = played(two_workers, replace(LOOPS[name], compressor=Dense(), junction=junction))[0]
    assert same(ours["parameters"], plain["parameters"])
    assert same(ours["means"], plain["means"])  # None where plain DDP has none


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("name", CONVERTED)
def test_compressed_means_are_those_of_the_simulated_world(
    two_workers: World, name: str, compressor: str
) -> None:
    loop = replace(LOOPS[name], compressor=COMPRESSORS[compressor], steps=8)
    stories = played(two_workers, loop)
    reference = simulated(loop.compressor, [story["own"] for story in stories])
    for found, expected in zip(stories[0]["means"], reference, strict=True):
        for tensor, mean in found.items():
            if tensor not in expected:
                assert mean is None, tensor
            else:  # in the parameter's type
                real = in_memory_order(mean)
                assert torch.equal(real, expected[tensor].to(real.dtype).view(real.shape)), tensor
    by_bucket = played(two_workers, replace(loop, junction="per_bucket"))[0]
    assert same(by_bucket["parameters"], stories[0]["parameters"])
    for residual in residuals(by_bucket["states"][-1]):
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


@pytest.mark.parametrize("junction", JUNCTIONS)
@pytest.mark.parametrize("view", [False, True])
def test_a_layer_frozen_in_mid_training_stands_still_and_its_residual_waits(
    two_workers: World, junction: str, view: bool
) -> None:
    loop = Loop("float32", EF4, junction, steps=8, freezes=(3, 6), view=view)
    for story in played(two_workers, loop):
        for step in range(3, 6):
            assert story["means"][step]["layers.0.weight"] is None
            states = [story["states"][s]["layers.0.weight"]["residual"] for s in (2, step)]
            assert states[0].any()
            assert torch.equal(*states)
        assert story["means"][6]["layers.0.weight"].any()


def test_a_scaled_loop_is_that_of_plain_ddp_overflow_included(two_workers: World) -> None:
    plain = Loop("float32", None, scaled=True, overflows=(1, 4))
    stock, ours = (
        played(two_workers, loop) for loop in (plain, replace(plain, compressor=Dense()))
    )
    assert same(ours[0]["parameters"], stock[0]["parameters"])
    assert ours[0]["scales"] == ours[1]["scales"] == stock[0]["scales"]
    assert ours[0]["scales"][3:5] == [1024, 512]


def test_an_overflow_on_one_rank_leaves_residuals_alone_and_the_scale_no_trace(
    two_workers: World,
) -> None:
    loop = Loop("float32", EF4, scaled=True, overflows=(1, 4))
    for story in played(two_workers, loop):
        assert same(story["states"][4], story["states"][3])
        assert not same(story["states"][5], story["states"][4])
        assert all(bool(torch.isinf(g).all()) for g in story["means"][4].values())
    calm = replace(loop, overflows=None)
    unscaled = replace(calm, scaled=False)
    assert same(*(played(two_workers, one)[0]["parameters"] for one in (calm, unscaled)))


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_a_step_that_is_not_finite_and_caught_is_as_if_it_had_been_left_out(
    two_workers: World, junction: str
) -> None:
    loop = Loop("float32", ErrorFeedback(TopK(0.1)), junction, steps=8)
    caught = played(two_workers, replace(loop, overflows=(1, 4)))
    for story in caught:
        assert set(story["means"][4].values()) == {None}
    left_out = played(two_workers, replace(loop, leaves_out=4))
    for one, other in zip(caught, left_out, strict=True):
        assert same(one["means"][5:], other["means"][5:])
        assert same(one["parameters"], other["parameters"])


BOTH, AFTER, BUCKET = JUNCTIONS, JUNCTIONS[:1], JUNCTIONS[1:]
REFUSED = [
    ("sparse", BOTH, r"model: 0\.weight has sparse gradients.* sparse=False"),
    ("no_ddp", BOTH, "model: attach takes a DistributedDataParallel model, got Linear; wrap"),
    ("hooked", BOTH, "model: it has a communication hook already"),
    ("attached_twice", BOTH, r"model: a compressor is attached to it already; call detach\(\)"),
    ("backward_twice", BUCKET, r"junction: per_bucket has sent .* `with model.no_sync\(\):`"),
    ("no_step", BOTH, r"exchange.step: it was not called between backward and optimizer.step\(\)"),
    ("uneven", BOTH, "model.join: a rank that has run out of batches .* drop_last=True"),
    ("really_uneven", BOTH, "model.join: a rank that has run out of batches .* drop_last=True"),
    ("thawed_before_attaching", BUCKET, "model: body.bias was frozen when the module was wrapped"),
    (
        "thawed_on_one_rank",
        BOTH,
        r"model: body.weight was frozen when .*, and attach \(rank 1\)$",
    ),
    ("thawed", BOTH, "model: body.weight was frozen when .*; detach, wrap the module in DDP again"),
    ("one_vector", AFTER, "unit: model joins .*, and idle.bias has received none .* unit=layer"),
    ("used_after_detaching", BOTH, "exchange: it was detached from its model"),
    ("scaled", BUCKET, "scaler: junction=per_bucket has sent .*; use junction=after_backward"),
    ("unscaled_first", AFTER, r"scaler: .* call scaler.unscale_\(optimizer\) after"),
    ("samples_untold", BOTH, r"samples: GraVAC weighs .*; call exchange.step\(samples=...\)"),
    ("samples_untold_by_one_rank", BOTH, r"samples: GraVAC weighs .* batch \(rank 1\)$"),
    ("rate_untold", BOTH, "learning_rate: Accordion looks at its decay; give EpochReport"),
]


@pytest.mark.parametrize(
    ("mistake", "junction", "message"),
    [(mistake, junction, text) for mistake, kinds, text in REFUSED for junction in kinds],
)
def test_what_cannot_go_right_is_refused_in_one_line(
    two_workers: World, mistake: str, junction: str, message: str
) -> None:
    for said in two_workers(getattr(own_loops, mistake), junction):
        assert re.match(f"UserError: {message}", said), said
        assert "\n" not in said
        assert not re.search(r"\b(exchange\.(junction|unit|combine)|train\.|launch\.)", said), said


def test_two_backwards_before_a_step_are_fine_after_backward(two_workers: World) -> None:
    assert two_workers(own_loops.backward_twice, "after_backward") == ["nothing"] * 2
    assert two_workers(own_loops.scaled, "after_backward") == ["nothing"] * 2


def test_a_layer_thawed_before_attaching_is_exchanged_after_backward(two_workers: World) -> None:
    assert two_workers(own_loops.thawed_before_attaching, "after_backward") == ["nothing"] * 2


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_a_detached_model_is_plain_ddp_and_can_be_attached_again(
    two_workers: World, junction: str
) -> None:
    for found in two_workers(own_loops.detached, junction):
        assert found["dropped"]
        assert same(found["detached"], found["plain"])
        assert same(found["again"], found["plain"])


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_the_ranks_are_those_of_the_models_process_group(two_workers: World, junction: str) -> None:
    first, second = two_workers(own_loops.within_a_group, junction)
    assert same(first["mean"], first["own"])
    assert same(second["mean"], second["own"])
    assert not same(first["own"], second["own"])


@pytest.mark.parametrize(
    ("junction", "norm"),
    [("after_backward", "mean"), ("per_bucket", "mean"), ("after_backward", "own")],
)
def test_accordion_is_told_the_norms_that_it_watches(
    two_workers: World, junction: str, norm: str
) -> None:
    first, second = two_workers(own_loops.accordion, junction, norm)
    assert first == second
    num_high, norms = first
    assert num_high == len(norms) == 4
    assert all(norms.values())
