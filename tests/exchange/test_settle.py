"""The end of a step in the simulated world: which parameters have a gradient, and what it costs to agree.

Real ranks: test_own_loops.py."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from laws import copied, same
from torch import Tensor, nn

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange import settle as module
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ddp import AfterBackward
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.settle import settle
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan

ONES = torch.ones(4)
RAMP = torch.tensor([1.0, 2.0, 3.0, 4.0])
TOPK = ErrorFeedback(TopK(0.25))
LADDER = ErrorFeedback(Ladder((Dense(), TopK(factor=4), TopK(factor=4))))


@pytest.fixture(params=[frozenset(), frozenset({"cpu"})], ids=["as on a CPU", "as on a GPU"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> frozenset[str]:
    """On which devices payloads are sent before the signals are read."""
    monkeypatch.setattr(module, "SEND_FIRST", request.param)
    first: frozenset[str] = request.param
    return first


@pytest.fixture(autouse=True)
def _in_both_orders(order: frozenset[str]) -> None:
    """Every test here."""


class Simulated:
    """Parameters a, b and c of two simulated workers, top-k with error feedback."""

    def __init__(self, compressor: Compressor = TOPK, plan: Plan | None = None) -> None:
        self.parameters = {name: nn.Parameter(torch.zeros(4)) for name in "abc"}
        self.link = Link(SimulatedWire(2), Ledger(), Clock(torch.device("cpu")))
        self.seen: list[list[float]] = []  # the policy's energies, by step
        self.plan = plan or Plan(0)
        self.exchange = GradientExchange(
            compressor,
            self.parameters,
            self.link,
            choose=lambda energies: self.see(energies.tolist()),
        )
        self.junction = AfterBackward(self.exchange, self.parameters)
        self.junction.begin(self.plan)

    def see(self, energies: list[float]) -> int:
        self.seen.append(energies)
        return 1

    def step(self, *workers: dict[str, Tensor], finite: bool = True) -> bool:
        for index, gradients in enumerate(workers):
            for name, parameter in self.parameters.items():
                given = gradients.get(name)
                parameter.grad = None if given is None else given.clone()
            self.junction.open(index)
        happened, _, energies = settle(
            self.link, self.exchange, self.junction, [], self.plan, finite=finite
        )
        if energies:
            self.see(energies)
        return happened

    def residual(self, worker: int, name: str) -> Tensor:
        residual: Tensor = self.exchange.states[worker][name]["residual"]
        return residual

    @property
    def signal_bytes(self) -> float:
        return self.link.ledger.metrics()["comm/signal_bytes"]


def test_zeros_where_another_worker_has_a_gradient_and_none_where_no_worker_has() -> None:
    run = Simulated()
    every = dict.fromkeys("abc", RAMP)
    assert run.step(every, every)
    waiting = copied(run.exchange.states)
    for last in ({"a": RAMP, "b": RAMP}, {"a": RAMP}):  # whichever worker comes last
        first = {"a": RAMP, "b": RAMP} if "b" not in last else {"a": RAMP}
        assert run.step(first, last)
        a, b, c = run.parameters.values()
        assert a.grad is not None
        assert b.grad is not None
        assert b.grad.any()
        assert c.grad is None
    for worker in (0, 1):
        assert same(run.exchange.states[worker]["c"], waiting[worker]["c"])
        assert not torch.equal(run.residual(worker, "b"), waiting[worker]["b"]["residual"])
    assert run.step(every, every)
    assert not torch.equal(run.residual(0, "c"), waiting[0]["c"]["residual"])


def test_a_frozen_parameter_has_no_gradient_whatever_is_left_in_it() -> None:
    run = Simulated()
    every = dict.fromkeys("abc", RAMP)
    run.step(every, every)
    waiting = run.residual(0, "c").clone()
    run.parameters["c"].requires_grad_(False)
    zeros = {**every, "c": torch.zeros(4)}
    run.step(zeros, zeros)
    assert not run.parameters["c"].grad.any()
    assert torch.equal(run.residual(0, "c"), waiting)


def test_the_ranks_agree_with_a_bitmap_only_in_steps_in_which_it_changes() -> None:
    run = Simulated()
    every, two = dict.fromkeys("abc", ONES), dict.fromkeys("ab", ONES)
    counted = []
    for gradients in (every, every, two, two, every):
        before = run.signal_bytes
        run.step(gradients, gradients)
        counted.append(run.signal_bytes - before)
    assert counted == [8, 8, 8 + 3 * 8, 8, 8 + 3 * 8]  # 2 workers: a ring moves what it is given


@pytest.mark.parametrize("rung", [None, 1], ids=["chosen", "planned"])
def test_the_residual_of_an_absent_parameter_adds_nothing_to_the_energies_of_a_policy(
    rung: int | None,
) -> None:
    plan = Plan(rung, candidates=(1, 2), norms=True, measures=rung is not None)
    run = Simulated(LADDER, plan)
    every, two = dict.fromkeys("abc", RAMP), dict.fromkeys("ab", RAMP)
    run.step(every, every)
    whole, kept, *_ = run.seen[0]
    assert (whole, kept) == (3 * 30, 3 * 16)
    before, counted = run.signal_bytes, []
    for _ in range(2):
        held = [run.residual(0, name) for name in "ab"]
        run.step(two, two)
        expected = sum(float((RAMP + residual).square().sum()) for residual in held)
        assert run.seen[-1][0] == expected
        counted.append(run.signal_bytes - before)
        before = run.signal_bytes
    told = 0 if rung is None else 6 * 8
    assert counted == [8 + told + 3 * 8 + told, 8 + told]  # shared again where the bitmap travels


def test_no_parameter_with_a_gradient_is_no_energy_at_all() -> None:
    run = Simulated(LADDER, Plan(None, candidates=(1, 2)))
    every = dict.fromkeys("abc", RAMP)
    run.step(every, every)
    run.step({}, {})
    assert run.seen[-1] == [0, 0, 0]


@pytest.mark.parametrize("known", [False, True])
def test_a_step_that_is_not_finite_changes_no_state_and_still_agrees(
    known: bool, order: frozenset[str]
) -> None:
    """``known``: to the host before it has read the signals. On a GPU it is not, and the payload is sent."""
    run = Simulated()
    every, two = dict.fromkeys("abc", ONES), dict.fromkeys("ab", ONES)
    run.step(every, every)
    states, ledger = copied(run.exchange.states), run.link.ledger
    sent = ledger.payload_bytes
    doubts = None if known else torch.tensor(1.0, dtype=torch.float64)
    with patch.object(run.exchange, "doubt", lambda: doubts):
        assert not run.step(two, two, finite=not known)
    assert same(run.exchange.states, states)
    assert run.exchange.absent == {"c"}
    assert ledger.payload_bytes == sent * (1 if known or not order else 2)
    assert run.step(every, every)
    other = Simulated()
    for _ in range(2):
        other.step(every, every)
    assert same(run.exchange.states, other.exchange.states)


@pytest.mark.parametrize("is_finite", [False, True])
def test_a_method_that_fails_on_what_has_travelled_does_not_hide_that_it_was_not_finite(
    is_finite: bool,
) -> None:
    """Sent before the signals, a NaN reaches the part of a method that decodes."""
    run = Simulated()
    every = dict.fromkeys("abc", ONES)
    run.step(every, every)
    states = copied(run.exchange.states)
    doubts = torch.tensor(float(not is_finite), dtype=torch.float64)
    with (
        patch.object(run.exchange, "doubt", lambda: doubts),
        patch.object(run.junction, "serve", side_effect=ArithmeticError("while it decoded")),
    ):
        if is_finite:
            with pytest.raises(ArithmeticError, match="while it decoded"):
                run.step(every, every)
            run.exchange.discard()
        else:
            assert not run.step(every, every)
    assert same(run.exchange.states, states)
    assert run.step(every, every)


def test_gradients_in_float32_are_not_copied_and_others_are_once() -> None:
    like = {"a": torch.empty(4), "b": torch.empty(4, dtype=torch.bfloat16)}
    link = Link(SimulatedWire(1), Ledger(), Clock(torch.device("cpu")))
    exchange = GradientExchange(ErrorFeedback(TopK(0.5)), like, link)
    given = {"a": ONES, "b": RAMP.bfloat16()}
    wide = exchange._converted(0, given)
    assert list(wide) == ["a", "b"]
    assert wide["a"] is ONES
    assert wide["b"].dtype == torch.float32
    assert torch.equal(wide["b"], RAMP)
    assert exchange._converted(0, given)["b"].data_ptr() == wide["b"].data_ptr()
    assert exchange._converted(0, {"a": ONES})["a"] is ONES
