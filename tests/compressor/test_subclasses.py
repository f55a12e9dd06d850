"""What a user's own class overrides or hands on is what counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from laws import played, stepped
from torch import Tensor

from dgc_repro import QSGD, ErrorFeedback, Sharded, Threshold, TopK, Uniform
from dgc_repro.compressor.interface import Context, Step, Wrapper, check_complete
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.world import World
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection

X = torch.arange(1.0, 25.0)


class FirstByChoosing(TopK):
    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        each = zip(x.tensors, self.each_num_kept(sizes), strict=True)
        return Selections.of([select.at(one.view(-1), torch.arange(k)) for one, k in each])


class FirstByThreshold(Threshold):
    choose_all = FirstByChoosing.choose_all


class FirstBySelect(TopK):
    def select(self, tensor: Tensor, context: Context) -> Selection:
        return select.at(tensor.view(-1), torch.arange(self.num_kept(tensor.numel())))


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


@pytest.mark.parametrize(
    ("base", "given", "instead"), [(QSGD, "encode", "encode_batch"), (TopK, "choose", "choose_all")]
)
def test_a_method_that_nobody_calls_is_refused(base: Any, given: str, instead: str) -> None:
    own = type("Own", (base,), {given: lambda *_: None})
    with pytest.raises(
        ValueError, match=f"^compressor: Own.{given} is not called; write {instead}"
    ):
        check_complete(own())


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
