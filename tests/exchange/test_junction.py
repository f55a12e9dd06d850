"""The end of a step in the simulated world: which parameters have a gradient, and what it costs to agree.

Real ranks: test_attach.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from jobs import kept, same
from torch import Tensor, nn

from dgc_repro import Dense, ErrorFeedback, Ladder, PerLayer, TopK, Uniform
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange import junction as module
from dgc_repro.exchange.exchange import Exchange, Running, groups_of, in_memory_order
from dgc_repro.exchange.junction import AfterBackward, first_non_finite
from dgc_repro.exchange.saved import load_state_dict, state_dict
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import Plan

ONES = torch.ones(4)
RAMP = torch.tensor([1.0, 2.0, 3.0, 4.0])
NAN = torch.tensor([1.0, torch.nan, 3.0, 4.0])
TOPK = ErrorFeedback(TopK(0.25))
LADDER = ErrorFeedback(Ladder((Dense(), TopK(factor=4), TopK(factor=4))))
EVERY, TWO = dict.fromkeys("abc", RAMP), dict.fromkeys("ab", RAMP)


class Simulated:
    """Parameters a, b and c of two simulated workers, top-k with error feedback."""

    def __init__(
        self, compressor: Compressor = TOPK, plan: Plan | None = None, workers: int = 2
    ) -> None:
        self.parameters = {name: nn.Parameter(torch.zeros(4)) for name in "abc"}
        self.world = World(workers)
        self.seen: list[list[float]] = []  # the policy's energies, by step
        self.exchange = Exchange(
            compressor,
            self.parameters,
            self.world,
            choose=lambda energies: self.see(energies.tolist()),
        )
        self.junction = AfterBackward(self.exchange, self.parameters)
        self.junction.begin(plan or Plan(0))

    def see(self, energies: list[float]) -> int:
        self.seen.append(energies)
        return 1

    def step(self, *workers: dict[str, Tensor], finite: bool = True) -> bool:
        bad = None
        for gradients in workers:
            for name, parameter in self.parameters.items():
                given = gradients.get(name)
                parameter.grad = None if given is None else given.clone()
            bad = self.junction.open() or bad
        happened, _ = self.junction.settle([], finite=finite and bad is None)
        for energies in self.exchange.told:
            self.see(energies.tolist())
        self.exchange.told.clear()
        return happened

    def states(self) -> Any:
        return kept([*map(self.exchange.states, range(self.world.local))])

    def residual(self, worker: int, name: str) -> Tensor:
        return self.exchange.states(worker)["residual"][name].clone()

    @property
    def signal_bytes(self) -> float:
        return self.world.ledger.metrics()["comm/signal_bytes"]


def test_zeros_where_another_worker_has_a_gradient_and_none_where_no_worker_has() -> None:
    run = Simulated()
    assert run.step(EVERY, EVERY)
    before = {(w, name): run.residual(w, name) for w in (0, 1) for name in "abc"}
    for last in (TWO, {"a": RAMP}):  # whichever worker comes last
        first = TWO if "b" not in last else {"a": RAMP}
        assert run.step(first, last)
        a, b, c = (parameter.grad for parameter in run.parameters.values())
        assert a is not None
        assert b is not None
        assert b.any()
        assert c is None
    for worker in (0, 1):
        assert torch.equal(run.residual(worker, "c"), before[worker, "c"])
        assert not torch.equal(run.residual(worker, "b"), before[worker, "b"])
    assert run.step(EVERY, EVERY)
    assert not torch.equal(run.residual(0, "c"), before[0, "c"])


def test_a_frozen_parameter_has_no_gradient_whatever_is_left_in_it() -> None:
    run = Simulated()
    run.step(EVERY, EVERY)
    waiting = run.residual(0, "c")
    run.parameters["c"].requires_grad_(False)
    zeros = {**EVERY, "c": torch.zeros(4)}
    run.step(zeros, zeros)
    left = run.parameters["c"].grad
    assert left is not None
    assert not left.any()
    assert torch.equal(run.residual(0, "c"), waiting)


def test_the_ranks_agree_with_a_bitmap_only_in_steps_in_which_it_changes() -> None:
    run = Simulated()
    counted = []
    for gradients in (EVERY, EVERY, TWO, TWO, EVERY):
        before = run.signal_bytes
        run.step(gradients, gradients)
        counted.append(run.signal_bytes - before)
    assert counted == [8, 8, 8 + 3 * 8, 8, 8 + 3 * 8]  # 2 workers: a ring moves what it is given


def test_an_absent_parameter_does_not_travel_and_adds_nothing_to_energies() -> None:
    for plan in (
        Plan(None, candidates=(1, 2), norms=True),
        Plan(1, candidates=(1, 2), norms=True, measures=True),
    ):
        run = Simulated(LADDER, plan)
        run.step(EVERY, EVERY)
        whole, fed, *_ = run.seen[0]
        assert (whole, fed) == (3 * 30, 3 * 16)
        sent = run.world.ledger.payload_by_collective["allgather"]
        for _ in range(2):
            held = [run.residual(0, name) for name in "ab"]
            before = run.world.ledger.payload_by_collective["allgather"]
            run.step(TWO, TWO)
            assert run.seen[-1][0] == sum(float((RAMP + r).square().sum()) for r in held)
            assert run.world.ledger.payload_by_collective["allgather"] - before == sent * 2 / 3


def test_a_step_without_any_gradient_changes_nothing() -> None:
    run = Simulated(LADDER, Plan(None, candidates=(1, 2)))
    run.step(EVERY, EVERY)
    before, sent = run.states(), run.world.ledger.payload_bytes
    assert run.step({}, {})
    assert same(run.states(), before)
    assert run.world.ledger.payload_bytes == sent
    assert run.step(EVERY, EVERY)


@pytest.mark.parametrize("bad", [NAN, None], ids=["not finite", "known to be wrong"])
def test_a_step_that_does_not_happen_changes_no_state_and_still_agrees(bad: Tensor | None) -> None:
    run = Simulated()
    run.step(EVERY, EVERY)
    before, sent = run.states(), run.world.ledger.payload_bytes
    given = TWO if bad is None else {**TWO, "b": bad}
    assert not run.step(TWO, given, finite=bad is not None)
    assert run.junction.named() == [None, None if bad is None else "b"]
    assert same(run.states(), before)
    assert run.junction.absent == {"c"}
    assert run.world.ledger.payload_bytes == sent
    assert run.step(EVERY, EVERY)
    other = Simulated()
    for _ in range(2):
        other.step(EVERY, EVERY)
    assert same(run.states(), other.states())


class One(Simulated):
    """The same of one worker, whose gradients travel before the ranks have agreed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_finite: bool) -> None:
        super().__init__(workers=1)
        monkeypatch.setattr(module, "SEND_FIRST", frozenset({"cpu"}))
        largest = torch.tensor([1.0 if is_finite else torch.inf])
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False)
        monkeypatch.setattr(module, "seen_on_gpu", lambda given: [(0, ("b",), (1,), largest)])
        monkeypatch.setattr(module, "first_non_finite", lambda *given: None)


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_step_sent_first_can_be_undone(monkeypatch: pytest.MonkeyPatch, is_finite: bool) -> None:
    run = One(monkeypatch, is_finite)
    before = kept(run.exchange.states())
    assert run.step(TWO) == is_finite
    after = run.exchange.states()
    assert same(before, after) == (not is_finite)
    assert not after["residual"]["c"].any()
    assert run.world.ledger.payload_bytes > 0
    if not is_finite:
        assert run.junction.named() == ["b"]


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_failure_does_not_hide_a_nan(monkeypatch: pytest.MonkeyPatch, is_finite: bool) -> None:
    def fails(_: Running) -> None:
        raise ArithmeticError("while it decoded")

    run = One(monkeypatch, is_finite)
    before = kept(run.exchange.states())
    with monkeypatch.context() as broken:
        broken.setattr(Running, "finish", fails)
        if is_finite:
            with pytest.raises(ArithmeticError, match="while it decoded"):
                run.step(TWO)
        else:
            assert not run.step(TWO)
            assert run.junction.named() == ["b"]
    assert same(run.exchange.states(), before)
    assert run.step(TWO) == is_finite


def test_gradients_in_float32_are_not_copied_and_others_are_once() -> None:
    like = {"a": torch.empty(4), "b": torch.empty(4, dtype=torch.bfloat16)}
    exchange = Exchange(ErrorFeedback(TopK(0.5)), like, World(1))
    seen: list[list[Tensor]] = []
    method: Any = exchange.groups[0].method
    step = type(method).step

    def noted(self: Any, xs: Any, *rest: Any) -> Any:
        seen.append(list(xs[0].tensors))
        return step(self, xs, *rest)

    type(method).step = noted
    try:
        for _ in range(2):
            given = {"a": ONES.clone(), "b": RAMP.bfloat16()}
            exchange.average([given])
            assert seen[-1][0] is given["a"]
            assert seen[-1][1].dtype == torch.float32
    finally:
        type(method).step = step
    assert seen[0][1].data_ptr() == seen[1][1].data_ptr()


# States: whose storage they are, and what they fit.

EF = ErrorFeedback(Uniform(3))
X = {"x": torch.tensor([1.0, 0.3, -0.2])}


def exchange_of(method: Compressor, like: dict[str, Tensor] = X) -> Exchange:
    return Exchange(method, like, World(1))


def test_what_was_saved_stays_as_it_was_when_training_goes_on_from_it() -> None:
    first, second = exchange_of(EF), exchange_of(EF)
    first.average([kept(X)])
    saved = copy.deepcopy(state_dict(first))
    before = kept(saved["states"])
    load_state_dict(second, saved)
    assert second.step == 1
    for _ in range(3):
        second.average([kept(X)])
    assert same(saved["states"], before)
    assert not same(second.states(), before)


@pytest.mark.parametrize("other", [TOPK, Dense(), Uniform(3), "of another shape"], ids=str)
def test_states_of_another_nest_are_refused(other: Any) -> None:
    """Those of error feedback around any method are alike."""
    if other is TOPK:
        load_state_dict(exchange_of(EF), state_dict(exchange_of(other)))
        return
    wrong = exchange_of(EF, {"x": ONES}) if isinstance(other, str) else exchange_of(other)
    with pytest.raises(ValueError, match="of another model, compressor or wrap list"):
        load_state_dict(exchange_of(EF), state_dict(wrong))


def test_a_state_that_does_not_fit_in_its_last_tensor_changes_nothing() -> None:
    like = {"x": X["x"], "y": X["x"]}
    own, wrong = exchange_of(EF, like), exchange_of(EF, {"x": X["x"], "y": ONES})
    own.average([kept(like)])
    before = kept(own.states())
    with pytest.raises(ValueError, match="of another model, compressor or wrap list"):
        load_state_dict(own, state_dict(wrong))
    assert same(own.states(), before)


def test_a_channels_last_weight_is_handed_over_as_it_lies_in_memory() -> None:
    weight = torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last)
    flat = in_memory_order(weight)
    assert (flat.shape, flat.is_contiguous()) == ((4, 5, 2, 3), True)
    assert flat.data_ptr() == weight.data_ptr()
    assert in_memory_order(flat) is flat


def test_what_float32_does_not_hold_is_not_finite_where_it_goes_on_as_float32() -> None:
    for dtype in (torch.float64, torch.complex128):
        given = {"a": torch.full((3,), 1e39, dtype=dtype)}
        assert first_non_finite(given) is None
        assert first_non_finite(given, ("a",)) == "a"


def test_each_per_layer_of_a_nest_exempts_its_own() -> None:
    names = ("first.weight", "last.weight", "bias")
    parameters = {n: torch.zeros(4) if n == "bias" else torch.zeros(4, 4) for n in names}
    inner = PerLayer(Uniform(4), dense=("first.*",))
    ladder = Ladder(
        (Dense(), PerLayer(Uniform(8)), PerLayer(Uniform(4), dense=("vectors", "first.*")))
    )
    for method, rung in ((ErrorFeedback(PerLayer(inner)), 0), (ladder, 2)):
        groups = dict(groups_of(method, parameters, "layer"))
        assert sorted(groups) == [("bias",), ("first.weight",), ("last.weight",)]
        for (name,), nest in groups.items():
            leaf = nest.rungs[rung] if rung else nest.inner
            while hasattr(leaf, "inner"):
                leaf = leaf.inner
            assert type(leaf) is (Uniform if name == "last.weight" else Dense), name
