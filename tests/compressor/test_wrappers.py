"""What wrappers exempt, choose and keep, and which orders of them are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import SETTINGS, Setting, play, simulation
from torch import Tensor

from dgc_repro import (
    BlockMomentum,
    ClipLocal,
    Dense,
    ErrorFeedback,
    Ladder,
    LoCo,
    MomentumCorrection,
    OneBitAdam,
    PerLayer,
    TopK,
    Uniform,
)
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.nesting import check_nesting, momentum_of
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.methods import copied

TOPK = TopK(0.1)
Nest = Callable[[Compressor], Compressor]


def test_vectors_small_tensors_and_named_ones_go_dense_and_keep_no_residual() -> None:
    rule = PerLayer(ErrorFeedback(Uniform(4)), ("vectors", "fc.*"), smaller_than=10)
    matrix = torch.zeros(4, 5)
    assert rule.exempt(torch.zeros(50), "conv.bias")
    assert rule.exempt(torch.zeros(()), "scale")
    assert rule.exempt(matrix, "fc.weight")
    assert rule.exempt(torch.zeros(3, 3), "conv.weight")
    assert not rule.exempt(matrix, "conv.weight")
    like = {"bias": torch.ones(100), "small": torch.ones(3, 3), "conv.weight": matrix}
    exchange = simulation(Setting("", rule), 1, like)
    assert exchange.states(0)["inner.residual"].keys() == {"conv.weight"}
    assert [group.names for group in exchange.groups] == [("bias", "small"), ("conv.weight",)]


def test_a_rung_the_ladder_lacks_is_an_error_and_not_the_last_one() -> None:
    setting = next(s for s in SETTINGS if s.name == "ladder-rung0")
    exchange = simulation(setting, 1, {"x": torch.ones(3)})
    for rung in (3, -1):
        with pytest.raises(ValueError, match=f"rung {rung} of a ladder of 3"):
            exchange.average([{"x": torch.ones(3)}], Plan(rung))


def test_where_the_feedback_stands_decides_how_many_residuals_there_are() -> None:
    like = {"x": torch.empty(3, 2)}
    shared, each = (
        simulation(Setting("", nest), 1, like).states(0)
        for nest in (
            ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(4)))),
            Ladder((Dense(), ErrorFeedback(Uniform(8)), ErrorFeedback(Uniform(4)))),
        )
    )
    assert shared.keys() == {"residual"}
    assert shared["residual"]["x"].shape == (3, 2)
    assert not shared["residual"]["x"].any()
    assert each.keys() == {"rung1.residual", "rung2.residual"}


def test_a_residual_is_sent_when_the_ladder_turns_dense() -> None:
    """Nothing is lost on the way to rung 0: it sends gradient and residual, and keeps nothing."""
    nest = ErrorFeedback(Ladder((Dense(), Uniform(2))))
    strong, dense = (Setting("x", nest, Plan(rung)) for rung in (1, 0))
    x = torch.tensor([1.0, 0.25, -0.25, 0.375])
    exchange = simulation(strong, 2, {"x": x})
    sent = play(exchange, strong, [{"x": x}, {"x": x}])["x"]
    kept = copied(exchange.states(0)["residual"]["x"])
    assert torch.equal(sent + kept, x)
    assert kept.any()
    assert torch.equal(play(exchange, dense, [{"x": x}, {"x": x}])["x"], x + kept)
    assert not exchange.states(0)["residual"]["x"].any()
    assert exchange.state_bytes() == x.nbytes


def energies_seen(nest: Compressor, plan: Plan, *steps: list[dict[str, Tensor]]) -> Any:
    """What the policy sees in each step; it always chooses the first candidate."""
    seen: list[list[float]] = []

    def choose(energies: Tensor) -> int:
        seen.append(energies.tolist())
        return plan.candidates[1]

    setting = Setting("x", nest, plan, choose)
    exchange = simulation(setting, len(steps[0]), steps[0][0])
    for gradients in steps:
        play(exchange, setting, gradients)
    return seen


def test_a_chosen_rung_sees_energies_summed_over_tensors_and_averaged_over_workers() -> None:
    ladder = Ladder((Dense(), Uniform(8), Uniform(2)))
    worker_0 = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0])}
    worker_1 = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0])}
    # ||g||^2: (9 + 1 + 4 + 1) / 2; two bits keep the largest and what is at least half of it.
    plan = Plan(None, candidates=(0, 2))
    assert energies_seen(ladder, plan, [worker_0, worker_1]) == [[7.5, 7.5, 7.0]]


def test_sums_of_norms_leave_the_residual_out_of_the_raw_gradient_only() -> None:
    """GraVAC's norm gain: sum_l ||C(g_l + e_l)|| over sum_l ||g_l||, means over workers."""
    ladder = ErrorFeedback(Ladder((Dense(), TopK(density=0.5), TopK(density=0.25))))
    worker = {"a": torch.tensor([4.0, 3.0, 0.0, 0.0]), "b": torch.tensor([0.0, 0.0, 2.0, 0.0])}
    step = [worker, {name: 2 * g for name, g in worker.items()}]
    first, second = energies_seen(ladder, Plan(None, candidates=(1, 2), norms=True), step, step)
    # a: 5, of which 25 % keeps 4 and leaves [0, 3, 0, 0]; b: 2. Then a + e = [4, 6, 0, 0].
    assert first[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (5 + 2), 1.5 * (4 + 2)])
    assert second[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (52**0.5 + 2), 1.5 * (6 + 2)])
    assert second[0] == pytest.approx(2.5 * (52 + 4))


# Orders.


@pytest.mark.parametrize(
    "nest",
    [
        TOPK,
        ErrorFeedback(TOPK),
        MomentumCorrection(TOPK),
        MomentumCorrection(ErrorFeedback(TOPK)),
        MomentumCorrection(PerLayer(ErrorFeedback(Ladder((Dense(), TOPK))))),
        MomentumCorrection(Ladder((Dense(), ErrorFeedback(TOPK)))),
        ClipLocal(TOPK),
        ClipLocal(MomentumCorrection(ErrorFeedback(TOPK))),
        ClipLocal(BlockMomentum(PerLayer(TOPK))),
    ],
)
def test_an_order_that_means_something_passes(nest: Compressor) -> None:
    check_nesting(nest)


RESIDUAL = "error_feedback around {} would keep a residual of"
WITHOUT = "{} around {} would leave some tensors without"
CLIPS = "clip_local clips the gradient before anything"
MEANINGLESS = [
    (ErrorFeedback(MomentumCorrection(TOPK)), RESIDUAL.format("momentum_correction")),
    (PerLayer(ErrorFeedback(PerLayer(MomentumCorrection(TOPK)))), RESIDUAL.format("momentum_correction")),
    (PerLayer(MomentumCorrection(ErrorFeedback(TOPK))),
     WITHOUT.format("per_layer", "momentum_correction") + " momentum; put momentum_correction first "
     "(clip_local alone may stand before it)"),
    (Ladder((Dense(), MomentumCorrection(ErrorFeedback(TOPK)))),
     "ladder around momentum_correction would leave rung 0 without momentum"),
    (PerLayer(BlockMomentum(TOPK)), WITHOUT.format("per_layer", "block_momentum")),
    (ErrorFeedback(BlockMomentum(TOPK)), RESIDUAL.format("block_momentum")),
    (BlockMomentum(ErrorFeedback(TOPK)),
     "block_momentum keeps a residual of its own, error_feedback would feed back twice"),
    (ErrorFeedback(LoCo(TOPK)), "loco keeps an error of its own, error_feedback would feed back twice"),
    (BlockMomentum(LoCo(TOPK)), "loco keeps an error of its own, block_momentum would feed back twice"),
    (LoCo(MomentumCorrection(TOPK)),
     "loco around momentum_correction would keep an error of the gradient that velocity is sent for"),
    (ErrorFeedback(OneBitAdam(TOPK)), RESIDUAL.format("onebit_adam")),
    (OneBitAdam(MomentumCorrection(TOPK)),
     "onebit_adam and momentum_correction would apply momentum twice"),
    (MomentumCorrection(BlockMomentum(TOPK)),
     "momentum_correction and block_momentum would apply momentum twice"),
    (BlockMomentum(PerLayer(MomentumCorrection(TOPK))),
     "block_momentum and momentum_correction would apply momentum twice"),
    *((wrapper(ClipLocal(TOPK)), CLIPS) for wrapper in (ErrorFeedback, MomentumCorrection, PerLayer)),
]  # fmt: skip


@pytest.mark.parametrize(("nest", "message"), MEANINGLESS)
def test_an_order_that_means_nothing_is_one_line_that_names_wrap(
    nest: Compressor, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^wrap: {re.escape(message)}") as refused:
        check_nesting(nest)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("between", [PerLayer, MomentumCorrection, ClipLocal])
def test_a_feedback_in_a_feedback_is_found_wherever_it_is(between: Nest) -> None:
    with pytest.raises(ValueError, match=r"^inner: an error feedback in an error feedback"):
        ErrorFeedback(between(ErrorFeedback(TOPK)))


def test_the_momentum_of_a_nest_is_found_wherever_it_is() -> None:
    momentum = MomentumCorrection(TOPK, 0.5)
    assert momentum_of(ClipLocal(momentum)) is momentum
    assert momentum_of(ClipLocal(ErrorFeedback(TOPK))) is None
