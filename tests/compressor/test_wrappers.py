"""What wrappers exempt, choose, clip and keep, and which orders of them are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from laws import SETTINGS, Setting, play, simulation
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.nesting import check_nesting, momentum_of
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import Plan

TOPK = D.TopK(0.1)
Nest = Callable[[Compressor], Compressor]


def test_vectors_small_tensors_and_named_ones_go_dense_and_keep_no_residual() -> None:
    rule = D.PerLayer(D.ErrorFeedback(D.Uniform(4)), ("vectors", "fc.*"), smaller_than=10)
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


def test_a_residual_is_sent_when_the_ladder_turns_dense() -> None:
    nest = D.ErrorFeedback(D.Ladder((D.Dense(), D.Uniform(2))))
    strong, dense = (Setting("x", nest, Plan(rung)) for rung in (1, 0))
    x = torch.tensor([1.0, 0.25, -0.25, 0.375])
    exchange = simulation(strong, 1, {"x": x})
    kept = x - play(exchange, strong, [{"x": x}])["x"]
    assert kept.any()
    assert torch.equal(play(exchange, dense, [{"x": x}])["x"], x + kept)
    assert not exchange.states(0)["residual"]["x"].any()


def test_sums_of_norms_leave_the_residual_out_of_the_raw_gradient_only() -> None:
    """GraVAC's norm gain: sum_l ||C(g_l + e_l)|| over sum_l ||g_l||, means over workers."""
    nest = D.ErrorFeedback(D.Ladder((D.Dense(), D.TopK(density=0.5), D.TopK(density=0.25))))
    worker = {"a": torch.tensor([4.0, 3.0, 0.0, 0.0]), "b": torch.tensor([0.0, 0.0, 2.0, 0.0])}
    step = [worker, {name: 2 * g for name, g in worker.items()}]
    seen: list[list[float]] = []

    def choose(energies: Tensor) -> int:
        seen.append(energies.tolist())
        return 2

    setting = Setting("x", nest, Plan(None, candidates=(1, 2), norms=True), choose)
    exchange = simulation(setting, 2, worker)
    for _ in range(2):
        play(exchange, setting, step)
    first, second = seen
    # a: 5, of which 25 % keeps 4 and leaves [0, 3, 0, 0]; b: 2. Then a + e = [4, 6, 0, 0].
    assert first[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (5 + 2), 1.5 * (4 + 2)])
    assert second[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (52**0.5 + 2), 1.5 * (6 + 2)])
    assert second[0] == pytest.approx(2.5 * (52 + 4))


# Orders.


def test_the_orders_of_the_law_table_mean_something() -> None:
    for setting in SETTINGS:
        check_nesting(setting.compressor)
    check_nesting(D.MomentumCorrection(D.Ladder((D.Dense(), D.ErrorFeedback(TOPK)))))


RESIDUAL = "error_feedback around {} would keep a residual of"
WITHOUT = "{} around {} would leave some tensors without"
CLIPS = "clip_local clips the gradient before anything"
MEANINGLESS = [
    (D.ErrorFeedback(D.MomentumCorrection(TOPK)), RESIDUAL.format("momentum_correction")),
    (D.PerLayer(D.ErrorFeedback(D.PerLayer(D.MomentumCorrection(TOPK)))),
     RESIDUAL.format("momentum_correction")),
    (D.PerLayer(D.MomentumCorrection(D.ErrorFeedback(TOPK))),
     WITHOUT.format("per_layer", "momentum_correction") + " momentum; put momentum_correction first "
     "(clip_local alone may stand before it)"),
    (D.Ladder((D.Dense(), D.MomentumCorrection(D.ErrorFeedback(TOPK)))),
     "ladder around momentum_correction would leave rung 0 without momentum"),
    (D.PerLayer(D.BlockMomentum(TOPK)), WITHOUT.format("per_layer", "block_momentum")),
    (D.ErrorFeedback(D.BlockMomentum(TOPK)), RESIDUAL.format("block_momentum")),
    (D.BlockMomentum(D.ErrorFeedback(TOPK)),
     "block_momentum keeps a residual of its own, error_feedback would feed back twice"),
    (D.ErrorFeedback(D.LoCo(TOPK)), "loco keeps an error of its own, error_feedback would feed back twice"),
    (D.BlockMomentum(D.LoCo(TOPK)), "loco keeps an error of its own, block_momentum would feed back twice"),
    (D.LoCo(D.MomentumCorrection(TOPK)),
     "loco around momentum_correction would keep an error of the gradient that velocity is sent for"),
    (D.ErrorFeedback(D.OneBitAdam(TOPK)), RESIDUAL.format("onebit_adam")),
    (D.OneBitAdam(D.MomentumCorrection(TOPK)),
     "onebit_adam and momentum_correction would apply momentum twice"),
    (D.MomentumCorrection(D.BlockMomentum(TOPK)),
     "momentum_correction and block_momentum would apply momentum twice"),
    (D.BlockMomentum(D.PerLayer(D.MomentumCorrection(TOPK))),
     "block_momentum and momentum_correction would apply momentum twice"),
    *((wrapper(D.ClipLocal(TOPK)), CLIPS) for wrapper in (D.ErrorFeedback, D.MomentumCorrection, D.PerLayer)),
]  # fmt: skip


@pytest.mark.parametrize(("nest", "message"), MEANINGLESS)
def test_an_order_that_means_nothing_is_refused_in_a_line(nest: Compressor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^wrap: {re.escape(message)}") as refused:
        check_nesting(nest)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("between", [D.PerLayer, D.MomentumCorrection, D.ClipLocal])
def test_a_feedback_in_a_feedback_is_found_wherever_it_is(between: Nest) -> None:
    with pytest.raises(ValueError, match=r"^inner: an error feedback in an error feedback"):
        D.ErrorFeedback(between(D.ErrorFeedback(TOPK)))


def test_the_momentum_of_a_nest_is_found_wherever_it_is() -> None:
    momentum = D.MomentumCorrection(TOPK, 0.5)
    assert momentum_of(D.ClipLocal(momentum)) is momentum
    assert momentum_of(D.ClipLocal(D.ErrorFeedback(TOPK))) is None


# Local clipping: of the whole gradient, in the paper's units.


def norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def clipped_mean(clip: D.ClipLocal, every: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    setting = Setting("clip", clip)
    return play(simulation(setting, len(every), every[0]), setting, every)


def test_the_norm_is_that_of_all_tensors_together() -> None:
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.full((1,), 4.0), "c": torch.zeros(0)}
    clipped = clipped_mean(D.ClipLocal(D.Dense(), 2.5), [gradients])
    assert clipped["a"].tolist() == [1.5, 0.0]
    assert clipped["b"].tolist() == [2.0]
    assert clipped_mean(D.ClipLocal(D.Dense(), 5.0), [gradients])["b"].tolist() == [4.0]
    assert not clipped_mean(D.ClipLocal(D.Dense(), 5.0), [{"x": torch.zeros(3)}])["x"].any()


@pytest.mark.parametrize("workers", [1, 9])
def test_each_worker_has_its_share_of_the_threshold(workers: int) -> None:
    """N gradients at right angles, each as long as it may be, add up to the threshold."""
    each = [{"x": torch.eye(9)[worker] * 100} for worker in range(workers)]
    mean = clipped_mean(D.ClipLocal(D.Dense(), 2.0), each)
    assert norm(mean) == pytest.approx(2.0, rel=1e-6)  # float32 rounds 9 entries once or twice
    stricter = clipped_mean(D.ClipLocal(D.Dense(), 2.0, "mean"), each)
    assert norm(stricter) == pytest.approx(2.0 / workers, rel=1e-6)


def test_workers_are_clipped_each_by_its_own_norm() -> None:
    short, long = {"x": torch.tensor([1.0, 0.0])}, {"x": torch.tensor([0.0, 100.0])}
    limit = 2.0 * math.sqrt(2)  # N of threshold N^-1/2
    mean = clipped_mean(D.ClipLocal(D.Dense(), 2.0), [short, long])["x"]
    assert mean.tolist() == pytest.approx([0.5, limit / 2])


def test_a_gradient_whose_square_overflows_is_clipped_and_not_lost() -> None:
    gradients = {"x": torch.tensor([3e30, 4e30])}
    assert clipped_mean(D.ClipLocal(D.Dense(), 5.0), [gradients])["x"].tolist() == pytest.approx(
        [3, 4]
    )


def test_one_vector_has_the_norm_of_its_parts() -> None:
    like = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    setting = Setting("clip", D.ClipLocal(D.Dense(), 2.5))
    whole = Exchange(setting.compressor, like, World(1), unit="model")
    assert play(whole, setting, [like])["b"].tolist() == [2.0]
