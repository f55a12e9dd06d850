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


START = list(torch.arange(9.0).tolist())
BOTH = pytest.mark.parametrize("renewed", [False, True])


@BOTH
def test_a_state_that_is_not_held_changes_in_place(renewed: bool) -> None:
    kept = made(renewed)
    where: Tensor = kept.now[0].flat
    write(kept, NAMES)
    assert kept.now[0].flat is where
    assert values(kept) == [v + 10 for v in START]


@BOTH
@pytest.mark.parametrize("names", [NAMES, ("b",), ()])
def test_what_was_written_is_undone(renewed: bool, names: tuple[str, ...]) -> None:
    kept = made(renewed)
    for _ in range(3):
        kept.hold()
        write(kept, names)
        kept.undo()
        assert values(kept) == START


@BOTH
def test_what_was_not_written_and_what_was_absent_stays(renewed: bool) -> None:
    kept = made(renewed)
    for _ in range(2):
        kept.hold()
        write(kept, ("a",))
        write(kept, ("b",))
        kept.accept(("b",))
    assert values(kept) == [v + 20 * (place < 2) for place, v in enumerate(START)]
    kept.hold()
    kept.accept(())
    assert values(kept) == [v + 20 * (place < 2) for place, v in enumerate(START)]


@BOTH
def test_what_is_committed_is_the_state_before_while_it_is_held(renewed: bool) -> None:
    kept = made(renewed)
    kept.hold()
    write(kept, ("a",))
    assert kept.committed[0].flat.tolist() == START
    kept.accept(())
    assert kept.committed[0].flat.tolist() == values(kept) != START


@BOTH
def test_a_step_that_has_ended_in_an_error_is_undone_by_the_next(renewed: bool) -> None:
    kept = made(renewed)
    kept.hold()
    write(kept, NAMES)
    kept.hold()
    write(kept, NAMES)
    kept.accept(())
    assert values(kept) == [v + 10 for v in START]
