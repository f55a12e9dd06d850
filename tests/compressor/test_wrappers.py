"""What wrappers refuse, exempt and choose."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import SETTINGS, Setting, copied, play, simulation

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.requests import Mean
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan


@pytest.mark.parametrize("wrapper", [MomentumCorrection, BlockMomentum])
def test_what_becomes_state_is_not_averaged_in_its_own_storage(
    wrapper: Callable[[Compressor], Compressor],
) -> None:
    nest, x = wrapper(Dense()), torch.tensor([1.0, 2.0])
    nobody_reads = Context("x", 0, 0, 0, 2, 0, (0, 0), Workspace(), own_is_read=False)
    asked = next(nest.exchange(x, nest.init(x), nobody_reads))
    assert isinstance(asked, Mean)
    assert not asked.in_place


@pytest.mark.parametrize("wrapper", [ErrorFeedback, BlockMomentum])
def test_what_was_sent_outlives_the_residual_that_is_made_of_it(
    wrapper: Callable[[Compressor], Compressor],
) -> None:
    nest, x = wrapper(Dense()), torch.tensor([1.0, 2.0])
    exchange = nest.exchange(x, nest.init(x), Context("x", 0, 0, 0, 2, 0, (0, 0), Workspace()))
    sent = next(exchange).tensor.clone()  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as end:
        exchange.send(sent)
    assert sent.any()
    assert torch.equal(end.value.value.own.dense(), sent)
    assert not end.value.value.state["residual"].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dense": "vectors"}, "dense: a list, each a word"),
        ({"dense": [1]}, "dense: a list, each a word"),
        ({"smaller_than": -1}, "smaller_than: a number of values from 0, got -1"),
        ({"smaller_than": "2k"}, "smaller_than: a number of values from 0, got '2k'"),
    ],
)
def test_a_wrong_per_layer_rule_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        PerLayer(Uniform(), **settings)


def test_a_ladder_of_dense_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="^values: a ladder needs at least one setting"):
        Ladder((Dense(),))


def test_vectors_small_tensors_and_named_ones_go_dense() -> None:
    rule = PerLayer(Uniform(), ("vectors", "fc.*"), smaller_than=10)
    matrix = torch.zeros(4, 5)
    assert rule.exempt(torch.zeros(50), "conv.bias")
    assert rule.exempt(torch.zeros(()), "scale")
    assert rule.exempt(matrix, "fc.weight")
    assert rule.exempt(torch.zeros(3, 3), "conv.weight")
    assert not rule.exempt(matrix, "conv.weight")


def test_a_rung_the_ladder_lacks_is_an_error_and_not_the_last_one() -> None:
    setting = next(s for s in SETTINGS if s.name == "ladder-rung0")
    exchange = simulation(setting, 1, {"x": torch.ones(3)})
    with pytest.raises(ValueError, match="rung 3 of a ladder of 3"):
        exchange.open(0, {"x": torch.ones(3)}, Plan(3))
    with pytest.raises(ValueError, match="rung -1 of a ladder of 3"):
        exchange.open(0, {"x": torch.ones(3)}, Plan(-1))


def test_where_the_feedback_stands_decides_how_many_residuals_there_are() -> None:
    like = torch.empty(3, 2)
    shared = ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(4)))).init(like)
    each = Ladder((Dense(), ErrorFeedback(Uniform(8)), ErrorFeedback(Uniform(4)))).init(like)
    assert shared["residual"].shape == like.shape
    assert not shared["residual"].any()
    residuals = [[], ["inner", "residual"], ["inner", "residual"]]
    assert [sorted(rung) for rung in each["rungs"]] == residuals


def test_what_goes_dense_for_its_shape_keeps_no_residual() -> None:
    rule = PerLayer(ErrorFeedback(Uniform(4)), ("vectors", "fc.*"), smaller_than=10)
    assert rule.init(torch.ones(100)) == {}
    assert rule.init(torch.ones(3, 3)) == {}
    assert rule.init(torch.ones(5, 5))["inner"]["residual"].shape == (5, 5)


def test_a_residual_is_sent_when_the_ladder_turns_dense() -> None:
    """Nothing is lost on the way to rung 0: it sends gradient and residual, and keeps nothing."""
    nest = ErrorFeedback(Ladder((Dense(), Uniform(2))))
    strong, dense = (Setting("x", nest, Plan(rung)) for rung in (1, 0))
    x = torch.tensor([1.0, 0.25, -0.25, 0.375])
    exchange = simulation(strong, 2, {"x": x})
    sent = play(exchange, strong, [{"x": x}, {"x": x}])["x"]
    kept = copied(exchange.states[0]["x"]["residual"])
    assert torch.equal(sent + kept, x)
    assert kept.any()
    assert torch.equal(play(exchange, dense, [{"x": x}, {"x": x}])["x"], x + kept)
    assert not exchange.states[0]["x"]["residual"].any()
    assert exchange.state_bytes() == x.nbytes


def test_a_chosen_rung_sees_energies_summed_over_tensors_and_averaged_over_workers() -> None:
    seen: list[list[float]] = []

    def choose(energies: torch.Tensor) -> int:
        seen.append(energies.tolist())
        return 0

    ladder = Ladder((Dense(), Uniform(8), Uniform(2)))
    setting = Setting("x", ladder, Plan(None, candidates=(0, 2)), choose)
    exchange = simulation(setting, 2, {"a": torch.zeros(2), "b": torch.zeros(1)})
    worker_0 = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0])}
    worker_1 = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0])}
    play(exchange, setting, [worker_0, worker_1])
    # ||g||^2: (9 + 1 + 4 + 1) / 2; two bits keep the largest and what is at least half of it.
    assert seen == [[7.5, 7.5, 7.0]]


def test_sums_of_norms_leave_the_residual_out_of_the_raw_gradient_only() -> None:
    """GraVAC's norm gain: sum_l ||C(g_l + e_l)|| over sum_l ||g_l||, means over workers."""
    seen: list[list[float]] = []

    def choose(energies: torch.Tensor) -> int:
        seen.append(energies.tolist())
        return 2

    ladder = ErrorFeedback(Ladder((Dense(), TopK(density=0.5), TopK(density=0.25))))
    setting = Setting("x", ladder, Plan(None, candidates=(1, 2), norms=True), choose)
    exchange = simulation(setting, 2, {"a": torch.zeros(4), "b": torch.zeros(4)})
    worker = {"a": torch.tensor([4.0, 3.0, 0.0, 0.0]), "b": torch.tensor([0.0, 0.0, 2.0, 0.0])}
    for _ in range(2):
        play(exchange, setting, [worker, {name: 2 * g for name, g in worker.items()}])
    # a: 5, of which 25 % keeps 4 and leaves [0, 3, 0, 0]; b: 2. Then a + e = [4, 6, 0, 0].
    first, second = seen
    assert first[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (5 + 2), 1.5 * (4 + 2)])
    assert second[3:] == pytest.approx([1.5 * (5 + 2), 1.5 * (52**0.5 + 2), 1.5 * (6 + 2)])
    assert second[0] == pytest.approx(2.5 * (52 + 4))
