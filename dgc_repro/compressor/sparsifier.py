"""What sparsifiers share: how many entries they keep, and how a selection is sent.

A sparsifier is a compressor that chooses entries (`select`) and sends their values and places. It
can choose again among the survivors of a weaker one (`refine`), which is what a `Ladder` of
sparsifiers does (GraVAC, multi-level compression); `Selecting.send` then sends what the ladder has chosen.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from dgc_repro.checked import Share, checked, within
from dgc_repro.compressor.gathering import average, gathered, gathered_ragged
from dgc_repro.compressor.interface import Compressor, Context, Step
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.sparse import broken_places
from dgc_repro.payload import Sparse

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

DENSITY = 0.01  # where neither density nor factor is given
Density = Annotated[Share, "0.01 sends 1 %"]
Factor = Annotated[float, within(1), "100 sends one entry of 100"]
Sample = Annotated[Share, "0.01 looks at 1 % of the entries"]


@runtime_checkable
class Sparsifier(Protocol):
    """``ragged``: whether workers may send different numbers of entries. One that sets ``refines`` to
    False is measured and chosen by itself in a ladder, not among a weaker rung's survivors."""

    @property
    def ragged(self) -> bool: ...

    def select(self, tensor: Tensor, context: Context) -> Selection:
        """The entries to send. tensor: f32, contiguous, any shape."""

    def refine(self, survivors: Selection, context: Context) -> Selection:
        """The entries to send, from those that a weaker setting has chosen (n is the tensor's)."""


@runtime_checkable
class Largest(Protocol):
    """A sparsifier that chooses the k largest magnitudes exactly: several are found in one pass."""

    def num_largest(self, n: int) -> int:
        """k, for a tensor of n values."""


def share_sent(density: float | None, factor: float | None) -> float:
    """The share of entries to send, from whichever of the two is given (neither: `DENSITY`).
    Raises ValueError where they contradict each other."""
    if density is not None and factor is not None and not math.isclose(density * factor, 1):
        raise ValueError(
            f"density: {density} is a factor of {1 / density:g}, and factor is {factor}; give one"
        )
    if density is not None:
        return density
    return DENSITY if factor is None else 1 / factor


def num_kept(n: int, density: float) -> int:
    """k = max(1, round(n density)), and 0 of an empty tensor."""
    return min(n, max(1, round(n * density)))


def one_by_one(sparsifier: Any, batch: Batch, context: Context) -> Selections:
    """What a sparsifier selects of each tensor. Raises ValueError for what is no selection, and for places
    that do not ascend, which a bitmap would not show; on a GPU nobody looks at places."""
    each = enumerate(zip(batch.names, batch.tensors, strict=True))
    chosen = [sparsifier.select(x, context.of(i, name)) for i, (name, x) in each]
    for name, one in zip(batch.names, chosen, strict=True):
        if not isinstance(one, Selection):
            raise ValueError(f"select: what select.at returns, got {type(one).__name__} for {name}")
        if one.values.shape != one.indices.shape:
            raise ValueError(
                f"select: one value for each place, got values of shape {tuple(one.values.shape)} for "
                f"{name}; give select.at tensor.view(-1)"
            )
        if one.indices.device.type == "cpu" and not bool((one.indices.diff() > 0).all()):
            raise broken_places(one.n, one.indices.numel())
    return Selections.of(chosen)


def select_all(sparsifier: object, batch: Batch, context: Context) -> Selections:
    """The same, together where the sparsifier can."""
    together = getattr(sparsifier, "select_all", None)
    if together is None:
        return one_by_one(sparsifier, batch, context)
    chosen: Selections = together(batch, context)
    return chosen


def refine_all(
    sparsifier: Sparsifier, survivors: Selections, batch: Batch, context: Context
) -> Selections:
    """What a sparsifier selects among the survivors of each tensor."""
    kind = type(sparsifier)
    if getattr(kind, "refine", None) is DensitySparsifier.refine:
        values = survivors.values_of(batch)
        return survivors.among(sparsifier.choose_all(values, batch.sizes, context))  # type: ignore[attr-defined]
    each = enumerate(zip(batch.names, survivors, strict=True))
    return Selections.of([sparsifier.refine(x, context.of(i, name)) for i, (name, x) in each])


class Selecting(Compressor):
    """A method that is its `select`. ``ragged``: as of `Sparsifier`."""

    needs: ClassVar[tuple[str, ...]] = ("select", "ragged")
    sends_selected: ClassVar[bool] = True  # of what a ladder has chosen

    @property
    def needs_feedback(self) -> bool:
        """See compressor/nesting.py."""
        return True

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [self.encode(x, context.at(worker)) for worker, x in enumerate(xs)]
        return (yield from self.send(sent, out, world, context))

    def encode(self, x: Batch, context: Context) -> Any:
        """What this worker sends."""
        return self.payload_of(x.names, select_all(self, x, context), context)

    def payload_of(self, names: tuple[str, ...], chosen: Selections, context: Context) -> Any:
        """The payload of what was selected."""
        return Sparse.of(names, Selections.of(chosen), context.scratch)

    def send(self, sent: Sequence[Any], out: Batch, world: World, context: Context) -> Step:
        """Average what the workers hosted here and all others send."""
        ragged: bool = self.ragged  # type: ignore[attr-defined]
        every = yield from (gathered_ragged if ragged else gathered)(sent, world, context)
        average(every, out)
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return Selections.of(self.select_all(batch, context)).energies()

    def select_all(self, batch: Batch, context: Context) -> Selections:
        """The entries to send of each tensor."""
        return one_by_one(self, batch, context)


@checked
class DensitySparsifier(Selecting):
    """A sparsifier of a share of the entries. ``density``: share of the entries to send (0.01 where neither
    is given); ``factor``: send one entry of so many: 100 is density 0.01."""

    density: Density | None = None
    factor: Factor | None = None
    ragged: ClassVar[bool]

    def __post_init__(self) -> None:
        share_sent(self.density, self.factor)

    @property
    def share_sent(self) -> float:
        """k / n."""
        return share_sent(self.density, self.factor)

    def num_kept(self, n: int) -> int:
        """k, of a tensor of n values."""
        return num_kept(n, self.share_sent)

    def each_num_kept(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """k of each tensor."""
        return _each_num_kept(sizes, self.share_sent)

    def select(self, tensor: Tensor, context: Context) -> Selection:
        batch = Batch((context.name,), [tensor])
        found: Selection = self.choose_all(batch, batch.sizes, context)[0]
        return found

    def select_all(self, batch: Batch, context: Context) -> Selections:
        kind: type = type(self)
        chooser = _chooser(kind)
        if "choose_all" not in vars(chooser):
            return one_by_one(self, batch, context)
        return self.choose_all(batch, batch.sizes, context)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        x = Batch((context.name,), [survivors.values])
        chosen = self.choose_all(x, (survivors.n,), context)[0]
        return select.among(survivors, chosen.indices)

    @abstractmethod
    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        """The entries to send, from x: of each tensor all of its values (``sizes``), or its survivors."""


@cached()
def _each_num_kept(sizes: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple([num_kept(n, share) for n in sizes])


@lru_cache(maxsize=64)
def _chooser(kind: type) -> type:
    """The class that says what is chosen: a subclass may override `select` alone."""
    return next(base for base in kind.__mro__ if {"select", "choose_all"} & vars(base).keys())
