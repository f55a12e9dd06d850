"""A NaN or an infinity in a gradient is noticed before any state changes; states that are taken back."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from laws import same, tensors
from numeric import heavy_tailed, needs_c
from torch import Tensor, nn

from dgc_repro.compressor.kept import Kept
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.junction import AfterBackward, first_non_finite
from dgc_repro.exchange.world import World
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.selfcheck.methods import copied

BROKEN = (torch.nan, -torch.nan, torch.inf, -torch.inf)


@needs_c
@pytest.mark.parametrize("size", [1, 7, 4097, 100_000])
def test_the_kernels_scale_as_torch_does(size: int) -> None:
    x, to = heavy_tailed(size), torch.empty(size)
    kernels.scale(Batch(("x",), [x]), 1 / 3, Batch(("x",), [to]))
    assert torch.equal(to, x * torch.tensor(1 / 3))
    kernels.add_scaled(Batch(("x",), [x]), 1 / 3, Batch(("x",), [to]))
    assert torch.equal(to, x * torch.tensor(1 / 3) + x * torch.tensor(1 / 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_broken_tensor_is_named_in_any_type_wherever_it_is_broken(dtype: torch.dtype) -> None:
    for size in (1, 7, 4097, 100_000):
        given = {name: heavy_tailed(size).to(dtype) for name in "abc"}
        given |= {"empty": torch.ones(0, dtype=dtype), "f32": torch.ones(3)}
        assert first_non_finite(given) is None
        for place, broken in product((0, size // 2, size - 1), BROKEN):
            given["b"][place], kept = broken, given["b"][place].clone()
            assert first_non_finite(given) == "b"
            given["b"][place] = kept


ONE_VECTOR = [s for s in SETTINGS if str(s) in ("ef-uniform-4-stochastic-None", "ef-topk")]
CASES = [*((s, "layer") for s in SETTINGS), *((s, "model") for s in ONE_VECTOR)]


@pytest.mark.parametrize(("setting", "unit"), CASES, ids=str)
def test_a_step_that_is_not_finite_leaves_all_as_it_was(setting: Setting, unit: str) -> None:
    parameters = {name: nn.Parameter(one) for name, one in tensors(0, 0).items()}
    exchange = Exchange(
        setting.compressor, parameters, World(2), seed=7, unit=unit, choose=setting.choose
    )
    junction = AfterBackward(exchange, parameters)
    junction.begin(setting.plan)
    for broken, name, place in (
        (None, "", 0),
        (torch.nan, "one", 0),
        (-torch.inf, "mixed", 0),
        (torch.nan, "mixed", -1),
    ):
        before = copied([exchange.states(worker) for worker in range(2)])
        for worker in range(2):
            for parameter, gradient in tensors(worker, 1).items():
                parameters[parameter].grad = gradient
            if worker == 1 and broken is not None:
                parameters[name].grad.view(-1)[place] = broken  # type: ignore[union-attr]
            assert junction.open() == (name if worker == 1 and broken is not None else None)
        happened, _ = junction.settle([], finite=not any(junction.bad))
        assert happened == (broken is None)
        after = [exchange.states(worker) for worker in range(2)]
        if broken is not None:
            assert same(before, after)
            assert junction.named() == [None, name]


# A state that may be taken back: swapped or copied, whole or for some tensors.

NAMES, SHAPES = ("a", "b", "c"), [(2,), (3, 2), (1,)]
CPU = torch.device("cpu")


def made(renewed: bool) -> Kept:
    state = Segments.zeros(NAMES, SHAPES, CPU)
    state.flat.copy_(torch.arange(9.0))
    return Kept([state, state], renewed=renewed)  # shared by two workers


def write(kept: Kept, names: tuple[str, ...]) -> None:
    """A step that adds 10 to some tensors."""
    before, to = kept.renewing(names)[0]
    for one, other in zip(before.tensors, to.tensors, strict=True):
        torch.add(one, 10, out=other)


def values(kept: Kept) -> list[float]:
    assert kept.now[0] is kept.now[1]
    return list(kept.now[0].flat.tolist())


START = [float(v) for v in range(9)]
both_ways = pytest.mark.parametrize("renewed", [False, True])


@both_ways
def test_what_was_written_is_undone_and_what_is_not_held_changes_in_place(renewed: bool) -> None:
    kept = made(renewed)
    for names in (NAMES, ("b",), ()):
        kept.hold()
        write(kept, names)
        kept.undo()
        assert values(kept) == START
    where: Tensor = kept.now[0].flat
    write(kept, NAMES)
    assert kept.now[0].flat is where
    assert values(kept) == [v + 10 for v in START]


@both_ways
def test_what_was_not_written_and_what_was_absent_stays(renewed: bool) -> None:
    kept = made(renewed)
    for times in (1, 2):
        kept.hold()
        write(kept, ("a",))
        write(kept, ("b",))
        assert kept.committed[0].flat.tolist()[:2] == [10 * (times - 1), 1 + 10 * (times - 1)]
        kept.accept(("b",))
        assert values(kept) == [v + 10 * times * (place < 2) for place, v in enumerate(START)]
        assert kept.committed[0].flat.tolist() == values(kept)
    kept.hold()
    kept.accept(())
    assert values(kept) == [v + 20 * (place < 2) for place, v in enumerate(START)]


@both_ways
def test_a_step_that_has_ended_in_an_error_is_undone_by_the_next(renewed: bool) -> None:
    kept = made(renewed)
    kept.hold()
    write(kept, NAMES)
    kept.hold()
    write(kept, NAMES)
    kept.accept(())
    assert values(kept) == [v + 10 for v in START]
