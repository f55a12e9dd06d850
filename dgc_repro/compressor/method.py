"""What a method of averaging gradients is: ``setup`` once, and a generator ``step``.

A method serves a group of tensors for all workers hosted here: one in a real process, all of them where they
are simulated. Its `step` compresses, asks the `World` for a collective, yields what waits for it, and goes on
when that has landed. It writes the mean over all workers into ``out`` and returns what each worker hosted
here has sent, for error feedback.

States change in place. The exchange runs a step when all ranks know that the gradients of all are finite, or
keeps copies of the states and puts them back (exchange/exchange.py). Laws that every method obeys:
tests/compressor/test_laws.py.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments

if TYPE_CHECKING:
    from dgc_repro.compressor.interface import Context
    from dgc_repro.exchange.world import Wait, World


class Sent(Protocol):
    """What a worker has sent of a batch."""

    def subtract_from_(self, batch: Batch) -> None:
        """batch -= decoded, in one pass."""

    def zero_at_(self, batch: Batch) -> None:
        """Zero the entries that were sent; nothing where a payload has no places."""


Step = Generator["Wait", None, Sequence[Any]]
"""Yields what it waits for; returns what each worker hosted here has `Sent`."""


class Method:
    """Base of all methods. Its settings are fields. The object that a user makes is never changed: an
    exchange has a copy.

    ``exact``: it takes tensors of any float type as they are. Others get float32."""

    exact: ClassVar[bool] = False

    def setup(self, like: Batch, world: World) -> None:
        """Make the states for the tensors of a group: see `keep`."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        """Average. ``xs``: the tensors of each worker hosted here, all of the group or some (those of a
        bucket or of a rung). ``out``: where the mean goes; it may be ``xs[0]``, which is read before."""
        raise NotImplementedError

    def keep(self, label: str, states: Sequence[Segments]) -> None:
        """Have a state, one for each worker hosted here (the same object again where workers share it). A
        checkpoint holds it, and a step that is undone leaves it as it was."""
        vars(self).setdefault("_kept", {})[label] = states

    def kept(self, label: str, names: tuple[str, ...]) -> list[Batch]:
        """The state of each worker hosted here, of these tensors."""
        return [state.of(names) for state in vars(self)["_kept"][label]]

    def states(self, worker: int) -> dict[str, Segments]:
        """All states of a worker hosted here, by label. Those of what is wrapped stand below ``inner.``"""
        kept: dict[str, Sequence[Segments]] = vars(self).get("_kept", {})
        found = {label: states[worker] for label, states in kept.items()}
        for prefix, inside in self.inside():
            found |= {f"{prefix}.{label}": one for label, one in inside.states(worker).items()}
        return found

    def inside(self) -> Iterator[tuple[str, Method]]:
        """The methods that this one is made of, by what their labels begin with."""
        yield from ()


class Wrapper(Method):
    """A method around an ``inner`` one."""

    @property
    def _inner(self) -> Method:
        return self.inner  # type: ignore[attr-defined, no-any-return]

    def setup(self, like: Batch, world: World) -> None:
        self._inner.setup(like, world)

    def inside(self) -> Iterator[tuple[str, Method]]:
        yield "inner", self._inner


def together(steps: Sequence[Step]) -> Generator[Wait, None, list[Sequence[Any]]]:
    """Several steps side by side: all ask before any is waited for. What each returns, in their order."""
    returned: list[Sequence[Any]] = [()] * len(steps)
    waits: dict[int, Wait] = {}

    def advance(place: int) -> None:
        try:
            waits[place] = next(steps[place])
        except StopIteration as end:
            returned[place] = end.value
            waits.pop(place, None)

    for place in range(len(steps)):
        advance(place)
    while waits:
        yield from list(waits.values())
        for place in list(waits):
            advance(place)
    return returned


class Apart:
    """What was sent of a batch in parts, each of some of its tensors."""

    def __init__(self, parts: Sequence[tuple[tuple[str, ...], Any]]) -> None:
        """``parts``: the names of the tensors of a part, and what was sent of them."""
        self.parts = parts

    def _each(self, batch: Batch) -> Iterator[tuple[Batch, Any]]:
        places = {name: place for place, name in enumerate(batch.names)}
        for names, sent in self.parts:
            yield batch.part([places[name] for name in names]), sent

    def subtract_from_(self, batch: Batch) -> None:
        for part, sent in self._each(batch):
            sent.subtract_from_(part)

    def zero_at_(self, batch: Batch) -> None:
        for part, sent in self._each(batch):
            sent.zero_at_(part)


def apart(names: Sequence[tuple[str, ...]], returned: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """What each worker has sent, from what steps of parts have returned. ``names``: of each part."""
    if len(returned) == 1:
        return returned[0]
    return [Apart(list(zip(names, one, strict=True))) for one in zip(*returned, strict=True)]


def each_scratch(
    context: Context, workers: int, label: str, size: int, like: Tensor
) -> list[Tensor]:
    """A buffer for each worker hosted here, of the type and device of ``like`` (see `Context.scratch`)."""
    return [
        context.at(worker).scratch(label, size, like.dtype, like.device)
        for worker in range(workers)
    ]
