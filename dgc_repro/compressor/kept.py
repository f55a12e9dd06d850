"""A state that a method keeps between steps, and how it is taken back where a step does not happen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments


class Kept:
    """One state of each worker hosted here (the same object again where workers share it).

    While it is *held* the step may be taken back. A state that is *renewed* is then written into a second
    vector, and the two are swapped; of another one there is a copy. Without being held a state changes in
    place, and there is no second vector.
    """

    def __init__(self, states: Sequence[Segments], *, renewed: bool) -> None:
        """``renewed``: each step writes all values of the tensors that it is about (`renewing`)."""
        self.now = list(states)
        self._renewed = renewed
        self._before: list[
            Segments
        ] = []  # while this is held; else the second vectors, once there are any
        self._held = False
        self._written: set[str] = set()  # while this is held: what has been renewed

    @property
    def committed(self) -> list[Segments]:
        """The states as the last step has left them, while this is held too."""
        return self._before if self._held else self.now

    def renewing(self, names: tuple[str, ...]) -> list[tuple[Batch, Batch]]:
        """Of each worker the state of these tensors, and where the next one goes."""
        now = [state.of(names) for state in self.now]
        if not self._held or not self._renewed:
            return list(zip(now, now, strict=True))
        self._written.update(names)
        return [(one.of(names), to) for one, to in zip(self._before, now, strict=True)]

    def has_renewed(self, names: Collection[str]) -> bool:
        """Whether this step has written the state of these tensors anew."""
        return self._written.issuperset(names)

    def add(self, worker: int, names: tuple[str, ...], more: Sequence[Tensor]) -> None:
        """Add to a state that this step `has_renewed`."""
        torch._foreach_add_(list(self.now[worker].of(names).tensors), list(more))

    def hold(self) -> None:
        """A step begins that may be taken back."""
        if self._held:  # the last one has ended in an error
            self.undo()
        if not self._before:
            twins = {id(state): state.twin() for state in self.now}
            self._before = [twins[id(state)] for state in self.now]
        self._held = True
        self._written.clear()
        if self._renewed:
            self._swap()
            return
        for state, before in self._each():
            before.flat.copy_(state.flat)

    def undo(self) -> None:
        """The step has not happened."""
        if not self._held:
            return
        self._held = False
        if self._renewed:
            self._swap()
            return
        for state, before in self._each():
            state.flat.copy_(before.flat)

    def accept(self, absent: Collection[str]) -> None:
        """The step has happened, but not for ``absent`` tensors."""
        if not self._held:
            return
        self._held = False
        if self._renewed and not self._written:
            self._swap()
            return
        to: list[Tensor] = []
        given: list[Tensor] = []
        for state, before in self._each():
            old = set(state.names) - self._written if self._renewed else set()
            places = [state.places[name] for name in old.union(absent) if name in state.places]
            to += [state.tensors[place] for place in places]
            given += [before.tensors[place] for place in places]
        if to:
            torch._foreach_copy_(to, given)

    def _swap(self) -> None:
        self.now, self._before = self._before, self.now

    def _each(self) -> list[tuple[Segments, Segments]]:
        """The states and their second vectors, each once."""
        pairs = zip(self.now, self._before, strict=True)
        return [*{id(state): (state, before) for state, before in pairs}.values()]
