"""A state that may be taken back: swapped or copied, whole or for some tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dgc_repro.compressor.kept import Kept
from dgc_repro.kernel.segments import Segments

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


@both_ways
def test_a_step_that_has_ended_in_an_error_is_undone_by_the_next(renewed: bool) -> None:
    kept = made(renewed)
    kept.hold()
    write(kept, NAMES)
    kept.hold()
    write(kept, NAMES)
    kept.accept(())
    assert values(kept) == [v + 10 for v in START]
