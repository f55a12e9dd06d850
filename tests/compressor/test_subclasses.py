"""What a user's own class overrides or hands on is what counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from laws import play, played, simulation, stepped
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Context, State, check_complete
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection
from dgc_repro.payload.requests import Exchange, Outcome
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import Setting

X = torch.arange(1.0, 25.0)


class FirstByChoosing(TopK):
    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        return firsts(x, self.each_num_kept(sizes))


def firsts(x: Batch, ks: tuple[int, ...]) -> Selections:
    each = zip(x.tensors, ks, strict=True)
    return Selections.of([select.at(one.view(-1), torch.arange(k)) for one, k in each])


class FirstBySelect(TopK):
    def select(self, tensor: Tensor, context: Context) -> Selection:
        return select.at(tensor.view(-1), torch.arange(self.num_kept(tensor.numel())))


class FirstByThreshold(Threshold):
    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        return firsts(x, self.each_num_kept(sizes))


@pytest.mark.parametrize("kind", [FirstByChoosing, FirstBySelect, FirstByThreshold])
def test_an_overridden_choice_is_sent(kind: type[TopK]) -> None:
    assert torch.equal(stepped(kind(0.25), [X]).nonzero().view(-1), torch.arange(6))


@pytest.mark.parametrize("kind", [FirstByChoosing, FirstBySelect, FirstByThreshold])
def test_what_an_overridden_choice_passes_over_is_checked(kind: type[TopK]) -> None:
    x = X.clone()
    x[20] = torch.nan
    exchange = simulation(Setting("own", kind(0.25)), 1, {"x": x})
    exchange.open(0, {"x": x}, Plan(0))
    assert exchange.non_finite == {0: "x"}


class Halved(ErrorFeedback):
    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        outcome = yield from super().exchange(tensor, state, context)
        return Outcome(outcome.mean / 2, outcome.own, outcome.state)


def test_an_overridden_exchange_is_called_for_each_tensor() -> None:
    assert torch.equal(2 * stepped(Halved(TopK(0.25)), [X]), stepped(TopK(0.25), [X]))


def test_a_method_that_nobody_calls_is_refused() -> None:
    class Own(QSGD):
        def encode(self, tensor: Tensor, context: Context) -> Any:
            raise NotImplementedError

    with pytest.raises(
        ValueError, match="^compressor: Own.encode is not called; write encode_batch"
    ):
        check_complete(Own())

    class Chooses(TopK):
        def choose(self, x: Tensor, n: int, context: Context) -> Selection:
            raise NotImplementedError

    with pytest.raises(
        ValueError, match="^compressor: Chooses.choose is not called; write choose_all"
    ):
        check_complete(Chooses())


@dataclass(frozen=True)
class Transposed:
    """Hands on the transpose, contiguous or not."""

    inner: Any
    contiguous: bool

    def init(self, tensor: Tensor) -> State:
        state: State = self.inner.init(tensor.t())
        return state

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        turned = tensor.t().contiguous() if self.contiguous else tensor.t()
        outcome = yield from self.inner.exchange(turned, state, context)
        assert outcome.mean.shape == turned.shape
        return Outcome(outcome.mean.t().contiguous(), outcome.own, outcome.state)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("inner", [TopK(0.25), Uniform(16), ErrorFeedback(TopK(0.25))], ids=str)
def test_a_wrapper_may_hand_on_the_transpose(inner: Any, contiguous: bool) -> None:
    x = X.view(4, 6)
    mean = stepped(Transposed(inner, contiguous), [x])
    assert torch.equal(mean, stepped(inner, [x]))


class Waning(TopK):
    """k falls from step to step."""

    sent: ClassVar[list[int]] = [12, 6, 3]

    def num_largest(self, n: int) -> int:
        return self.sent.pop(0)


def test_a_number_of_entries_may_change_from_step_to_step() -> None:
    means, _ = played(Waning(0.5), [[X]] * 3)
    assert [int((mean != 0).sum()) for mean in means] == [12, 6, 3]


class Plain:
    """A sparsifier that has no more than the protocol asks for."""

    ragged = False

    def select(self, tensor: Tensor, context: Context) -> Selection:
        return select.topk(tensor.view(-1), 6)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        return select.refine(survivors, 6)


def test_a_sparsifier_that_chooses_tensor_by_tensor_is_aggregated() -> None:
    both = [X, X.flip(0)]
    known = Sharded(TopK(0.25, indices="int32"))
    assert torch.equal(stepped(Sharded(Plain()), both), stepped(known, both))


def test_a_state_of_another_size_is_refused_before_any_kernel_reads_it() -> None:
    setting = Setting("own", ErrorFeedback(TopK(0.25)))
    exchange = simulation(setting, 1, {"x": X})
    play(exchange, setting, [{"x": X}])
    with pytest.raises(ValueError, match="the saved compressor state is of another model"):
        exchange.load_state_dict(
            {"step": 1, "tensors": {"x": {"residual": torch.zeros(0), "inner": {}}}}
        )
    exchange.states[0] = {"x": {"residual": torch.zeros(3), "inner": {}}}
    with pytest.raises(ValueError, match="^x: a state of 3 values for a tensor of 24"):
        exchange.open(0, {"x": X.clone()}, Plan(0))
