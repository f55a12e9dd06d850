"""What a compressor is: ``init`` and a generator ``exchange``. Wrappers are compressors too.

A new method is one class with these two functions (docs/adding-a-compressor.md).

Laws every compressor obeys (tests/compressor/test_laws.py): agreement, averaging, conservation,
bytes, purity, resume. Purity has one rule for authors: `exchange` reads its state and returns a new
one; it may reuse the storage of the old one only through `Context.spare`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dgc_repro.kernel import counter
from dgc_repro.kernel.batch import Batch, Unchecked
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import Parted
from dgc_repro.payload.requests import Exchange, Outcome, together
from dgc_repro.policy.interface import Plan

State = dict[str, Any]
"""Nested dicts of tensors and numbers: it nests as the composition nests, and checkpoints as it is."""
EXCHANGES = "exchanges"
"""In a state: the number of completed exchanges of the tensor. A method that changes after so many keeps it,
because `Context.step` counts skipped steps too."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an exchange may know of its surroundings.

    ``name``: of the tensor; ``path``: where in the nest of wrappers (of a batch, an entry may be a tuple with
    a label for each tensor); ``rung``: what the policy planned for this tensor, None where the policy must
    see energies first (`Choose`).
    ``own_is_read``: whether `Outcome.own` is read; where it is not, a tensor that is sent whole may be
    averaged in its own storage. ``into``: where the mean may be written, see `result`.
    ``gradient_norm``: of this worker's whole gradient, measured when it is first asked for (on a GPU a
    tensor, f64[]); None where only a part of it is seen. ``learning_rate``: of this step, or 1 throughout
    where it is not given.
    ``selection``: what a ladder's probe has chosen already for this very exchange of a sparsifier.
    ``raw_energy``: ||g||^2 of the gradient before any wrapper, f64[], where the plan asks for norms.
    ``tell_energies``: takes the energies that `Choose` would, with the names of their tensors, where the
    plan asks for them and has chosen the rung already.

    Of a batch, ``name`` is the batch's, ``into`` and ``raw_energy`` (f64[tensors]) hold something for each
    tensor, and ``rungs`` are planned for each, where they are not all alike.
    """

    name: str
    step: int
    seed: int
    rank: int
    world_size: int
    rung: int | None
    candidates: tuple[int, int]
    workspace: Workspace
    path: tuple[Any, ...] = ()
    own_is_read: bool = True
    into: Any = None  # Tensor, of a batch Sequence[Tensor]
    gradient_norm: Callable[[], float | Tensor] | None = None
    learning_rate: float = 1.0
    selection: Any = None  # Selection, of a batch Sequence[Selection]
    raw_energy: Tensor | None = None
    plan: Plan | None = None
    slot: tuple[
        int, ...
    ] = ()  # group, bucket and worker: steps under way at once have other buffers
    norms: Callable[[], Sequence[float | Tensor]] | None = None
    raw: Sequence[Tensor] = ()
    choose: Callable[[Tensor], int] | None = None
    tell: Callable[[Tensor], object] | None = None
    tell_energies: Callable[[tuple[str, ...], Tensor], None] | None = None
    rungs: Sequence[int | None] | None = None

    @property
    def measures(self) -> bool:
        """Whether a ladder in here will look at the energies of what it is given."""
        if self.plan is not None:
            return self.plan.rung is None or self.plan.measures
        return self.tell_energies is not None or None in (self.rungs or [self.rung])

    def within(
        self,
        label: str | tuple[str, ...],
        *,
        reads_own: bool = False,
        reads_gradient: bool = False,
    ) -> Context:
        """The context of a wrapped compressor: its buffers and random numbers are its own. A wrapper
        that reads the inner outcome's ``own`` says so, and one that reads its own ``tensor`` after
        the inner exchange has ended (the mean may lie there by then)."""
        if self.plan is not None:
            return replace(self, path=(*self.path, label))
        return Context(
            self.name, self.step, self.seed, self.rank, self.world_size, self.rung, self.candidates,
            self.workspace, (*self.path, label), self.own_is_read or reads_own,
            None if reads_gradient else self.into, self.gradient_norm,
            self.learning_rate, raw_energy=self.raw_energy, tell_energies=self.tell_energies,
            rungs=self.rungs,
        )  # fmt: skip  # dataclasses.replace costs 5 times as much, and this runs for each tensor

    def at(self, worker: int) -> Context:
        """The context of one of the workers hosted here, with buffers of its own."""
        raw = self.raw[worker] if self.raw else None
        slot = (*self.slot, worker)
        return replace(self, rank=self.rank + worker, slot=slot, raw_energy=raw)

    def part(self, label: str, places: Sequence[int]) -> Context:
        """The context of some tensors of a batch, with buffers of its own and the same random numbers."""

        def some(values: Any) -> Any:
            return None if values is None else [values[i] for i in places]

        energy = self.raw_energy
        return replace(
            self,
            name=f"{self.name}/{label}",
            path=tuple(tuple(some(p)) if isinstance(p, tuple) else p for p in self.path),
            into=some(self.into),
            raw_energy=None if energy is None else energy[list(places)],
            rungs=some(self.rungs),
        )

    def of(self, place: int, name: str) -> Context:
        """The context of one tensor of a batch."""
        return replace(
            self,
            name=name,
            path=tuple(p[place] if isinstance(p, tuple) else p for p in self.path),
            into=None if self.into is None else self.into[place],
            raw_energy=None if self.raw_energy is None else self.raw_energy[place],
            rung=self.rung if self.rungs is None else self.rungs[place],
            rungs=None,
            selection=None if self.selection is None else self.selection[place],
        )

    def scratch(self, label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A reused 1-d buffer of ``size`` elements; content undefined; valid during this exchange."""
        key = (*self.slot, self.name, *self.path, label)
        return self.workspace.scratch(key, size, dtype, device)

    def buffers(self, label: str, batch: Batch) -> list[Tensor]:
        """Reused f32 buffers with the shapes of a batch; content undefined; valid during this exchange."""
        flat = self.scratch(label, sum(batch.sizes), torch.float32, batch.device)
        shaped = zip(flat.split(batch.sizes), batch.tensors, strict=True)
        return [part.view(tensor.shape) for part, tensor in shaped]

    def result(self, tensor: Tensor) -> Tensor:
        """A 1-d buffer for the mean of tensors like this one, f32; content undefined.

        It may be the storage of the gradient that the exchange began with: write when the last
        answer is there, and read no gradient afterwards. Simulated workers share it."""
        into: Tensor | None = self.into
        if (
            into is None
            or into.numel() != tensor.numel()
            or into.dtype != torch.float32
            or into.device != tensor.device
            or not into.is_contiguous()
        ):
            return self.scratch("mean", tensor.numel(), torch.float32, tensor.device)
        return into.view(-1)

    def results(self, batch: Batch) -> Batch:
        """The same for a batch."""
        if self.into is not None:
            return Batch(batch.names, self.into, Unchecked())
        return Batch(batch.names, self.buffers("mean", batch), Unchecked())

    def spare(self, label: str, current: Tensor) -> Tensor:
        """A reused buffer for the successor of ``current``, a tensor of the state."""
        return self.workspace.spare((self.name, *self.path, label), current)

    def spares(self, label: str, current: Sequence[Tensor]) -> list[Tensor]:
        """The same for the tensors of a batch."""
        return self.workspace.spares((self.name, *self.path, label), current)

    def keys(self, names: Sequence[str], *, shared: bool) -> counter.Numbers:
        """The keys of the tensors of a batch: i32[tensors]."""
        after: tuple[int | str | tuple[str, ...], ...] = (*self.path, -1 if shared else self.rank)
        return counter.keys((self.seed, self.step), names, after)

    def key(self, *, shared: bool) -> int:
        """A 32-bit key for random numbers of this step and tensor: one for all workers, or one each."""
        return counter.key(self.seed, self.step, self.name, *self.path, -1 if shared else self.rank)


@runtime_checkable
class Compressor(Protocol):
    """A method of sending a gradient: the state it keeps for a tensor, and one exchange."""

    def init(self, tensor: Tensor) -> State:
        """The state before the first step of a tensor like this one (its values do not matter)."""

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        """Send this worker's ``tensor`` (contiguous, any shape) and return an `Outcome`.

        The tensor is read only, but for the answer that `Context.result` puts there, and it may hold
        NaN and infinities: the step is then discarded, when every exchange has been opened."""


@runtime_checkable
class Batched(Compressor, Protocol):
    """A compressor that handles all tensors of a step in one exchange: in few kernels."""

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        """`exchange` of every tensor of a batch, each with its state. The `Outcome` has lists."""


def exchange_all(
    compressor: Compressor, batch: Batch, states: Sequence[State], context: Context
) -> Exchange:
    """The exchange of a batch: in one, where the compressor can, else tensor by tensor."""
    if batch.names and takes_batches(type(compressor)):
        exchange: Exchange = compressor.exchange_batch(batch, states, context)  # type: ignore[attr-defined]
        return exchange
    return one_by_one(compressor, batch, states, context)


@lru_cache(maxsize=256)
def takes_batches(kind: type) -> bool:
    """Whether a class is written for batches. One that overrides the `exchange` of such a class is not."""
    return next(
        ("exchange_batch" in vars(base) for base in kind.__mro__ if _EXCHANGES & vars(base).keys()),
        False,
    )


_EXCHANGES = {"exchange", "exchange_batch"}


class ByBatch:
    """A method that is written for batches. A single tensor is a batch of one."""

    def exchange(self: Batched, tensor: Tensor, state: State, context: Context) -> Exchange:
        batch, shape = Batch((context.name,), [tensor.contiguous()]), tensor.shape
        del tensor
        raw, into = context.raw_energy, context.into
        inside = replace(
            context,
            into=None if into is None or not _fits(into, batch) else [into.view(shape)],
            raw_energy=None if raw is None else raw.view(1),
        )
        outcome = yield from self.exchange_batch(batch, [state], inside)
        return Outcome(outcome.mean[0], outcome.own, outcome.state[0])


class Measured(ByBatch):
    """One that can tell the energies of what it would send (`Measurable`)."""

    @abstractmethod
    def energies(self, batch: Batch, context: Context) -> Tensor:
        """||x||^2 - ||x - C(x)||^2 of each tensor, f64[tensors], without changing anything."""

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        """The same of one tensor: f64[]."""
        return self.energies(Batch((context.name,), [tensor]), context)[0]


def energies_of(compressor: object, batch: Batch, context: Context) -> Tensor:
    """f64[tensors]: what a `Measurable` compressor would explain of each tensor."""
    if isinstance(compressor, Measured):
        return compressor.energies(batch, context)
    assert isinstance(compressor, Measurable), "the builder refuses what cannot be measured"
    alone = enumerate(zip(batch.names, batch.tensors, strict=True))
    return torch.stack([compressor.energy(x, context.of(i, name)) for i, (name, x) in alone])


def _fits(into: Tensor, batch: Batch) -> bool:
    """Whether the mean of a batch of one may be written there."""
    return (
        into.numel() == batch.sizes[0]
        and into.dtype == torch.float32
        and into.device == batch.device
        and into.is_contiguous()
    )


def joined(outcomes: Mapping[tuple[int, ...], Outcome]) -> Outcome:
    """The outcome of a batch from those of its parts, by the places of their tensors."""
    means: dict[int, Tensor] = {}
    states: dict[int, State] = {}
    for places, outcome in outcomes.items():
        means.update(zip(places, outcome.mean, strict=True))
        states.update(zip(places, outcome.state, strict=True))
    order, parts = range(len(means)), tuple(outcomes)
    own = Parted(
        tuple(outcome.own for outcome in outcomes.values()),
        lambda batch: [batch.part(places) for places in parts],
    )
    return Outcome([means[i] for i in order], own, [states[i] for i in order])


def one_by_one(
    compressor: Compressor, batch: Batch, states: Sequence[State], context: Context
) -> Exchange:
    """The exchange of a batch by a method that is written for one tensor."""
    opened = {
        name: compressor.exchange(tensor, state, context.of(i, name))
        for i, (name, tensor, state) in enumerate(
            zip(batch.names, batch.tensors, states, strict=True)
        )
    }
    names = batch.names
    del batch
    outcomes = yield from together(opened)
    ended = [outcomes[name] for name in names]
    return Outcome(
        [outcome.mean for outcome in ended],
        Parted(tuple(outcome.own for outcome in ended), lambda batch: batch.tensors),
        [outcome.state for outcome in ended],
    )


def wrong_shape(mean: Tensor, shape: torch.Size) -> str:
    """Say what is wrong with a mean that has another shape than its tensor; empty where it has that shape. (A
    copy into the gradient would broadcast some shapes.)"""
    if mean.shape == shape:
        return ""
    return f"mean has shape {[*mean.shape]}, the tensor {[*shape]}: use .view(tensor.shape)"


def nested(compressor: object) -> Iterator[object]:
    """A compressor and all it is made of, outermost first."""
    yield compressor
    if is_dataclass(compressor):
        for part in fields(compressor):
            value = getattr(compressor, part.name)
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, Compressor):
                    yield from nested(inner)


def check_complete(compressor: object) -> None:
    """Raise ValueError where a part lacks what its exchange will ask for, before any rank has started."""
    for part in nested(compressor):
        for before, now in (("encode", "encode_batch"), ("choose", "choose_all")):
            if hasattr(part, before) and hasattr(part, now):
                raise ValueError(
                    f"compressor: {type(part).__name__}.{before} is not called; write {now} in its place "
                    "(docs/adding-a-compressor.md)"
                )
        for name in ("init", "exchange", *getattr(part, "needs", ())):
            if not hasattr(part, name):
                raise ValueError(
                    f"compressor: {type(part).__name__} has no attribute {name}; give it one "
                    "(docs/adding-a-compressor.md)"
                )


@runtime_checkable
class FitsModel(Protocol):
    """A compressor with a setting that not every model allows."""

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Raise ValueError, beginning with the bare field, where tensors of these shapes do not suit."""


@runtime_checkable
class Measurable(Protocol):
    """A compressor that can tell the energy of what it would send, as `Choose` needs."""

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        """||x||^2 - ||x - C(x)||^2, f64[], without changing anything (compressor/explained.py)."""
