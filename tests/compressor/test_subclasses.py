"""What a user's own class overrides or hands on is what counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from laws import play, played, same, simulation, stepped
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Context, Step, Wrapper, check_complete
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.saved import load_state_dict
from dgc_repro.exchange.world import World
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.selfcheck.methods import copied

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


class Halved(ErrorFeedback):
    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = yield from super().step(xs, out, world, context)
        torch._foreach_div_(list(out.tensors), 2)
        return sent


def test_an_overridden_step_is_what_counts() -> None:
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
class Transposed(Wrapper):
    """Hands on the transpose."""

    inner: Any

    def setup(self, like: Batch, world: World) -> None:
        self.inner.setup(turned(like), world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        mean = turned(out)
        sent = yield from self.inner.step([turned(x) for x in xs], mean, world, context)
        for to, one in zip(out.tensors, mean.tensors, strict=True):
            to.copy_(one.t())
        return sent


def turned(batch: Batch) -> Batch:
    return Batch(batch.names, [tensor.t().contiguous() for tensor in batch.tensors])


@pytest.mark.parametrize("inner", [TopK(0.25), Uniform(16), ErrorFeedback(TopK(0.25))], ids=str)
def test_a_wrapper_may_hand_on_the_transpose(inner: Any) -> None:
    x = X.view(4, 6)
    mean = stepped(Transposed(inner), [x])
    assert torch.equal(mean, stepped(inner, [x]))


class Waning(TopK):
    """k falls from step to step."""

    sent: ClassVar[list[int]] = [12, 6, 3]

    def num_largest(self, n: int) -> int:
        return self.sent.pop(0)


def test_a_number_of_entries_may_change_from_step_to_step() -> None:
    means, _ = played(Waning(0.5), [[X]] * 3)
    assert [int((mean != 0).sum()) for mean in means] == [12, 6, 3]


class Plain(Selecting):
    """A sparsifier that has no more than it needs."""

    ragged = False

    def select(self, tensor: Tensor, context: Context) -> Selection:
        return select.topk(tensor.view(-1), 6)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        return select.refine(survivors, 6)


def test_a_sparsifier_that_chooses_tensor_by_tensor_is_aggregated() -> None:
    both = [X, X.flip(0)]
    known = Sharded(TopK(0.25))
    assert torch.equal(stepped(Sharded(Plain()), both), stepped(known, both))


def test_a_state_of_another_size_or_nest_is_refused_and_changes_nothing() -> None:
    setting = Setting("own", ErrorFeedback(TopK(0.25)))
    exchange = simulation(setting, 1, {"x": X})
    play(exchange, setting, [{"x": X}])
    states = copied(exchange.states(0))
    for other in (
        {"residual": {"x": torch.zeros(3)}},
        {},
        {**states, "velocity": states["residual"]},
    ):
        with pytest.raises(ValueError, match="the saved compressor state is of another model"):
            load_state_dict(exchange, {"step": 1, "states": other})
        assert same(exchange.states(0), states)
