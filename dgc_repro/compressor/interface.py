"""What a compressor is: ``setup`` once, and a generator ``step``. Wrappers are compressors too.

A compressor serves a group of tensors for all workers hosted here: one in a real process, all of them where
they are simulated. Its `step` compresses, asks the `World` for a collective, yields what waits for it, and
goes on when that has landed. It writes the mean over all workers into ``out`` and returns what each worker
hosted here has sent, for error feedback.

States change in place. The exchange runs a step when all ranks know that the gradients of all are finite, or
keeps copies of the states and puts them back (exchange/exchange.py). Laws that every compressor obeys
(tests/compressor/test_laws.py): agreement, averaging, conservation, bytes, undo, resume.

A new method is one class (docs/adding-a-compressor.md): `Selecting` with its `select`, `Quantizer` with its
`encode_batch`, `PerTensor` with two functions, or a `Compressor` with a `step`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from dgc_repro.compressor.kept import Kept
from dgc_repro.kernel import counter
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan

if TYPE_CHECKING:
    from dgc_repro.exchange.world import Wait, World

EXCHANGES = "exchanges"
"""In states: the number of completed exchanges of a tensor. A method that changes after so many keeps it,
because `Context.step` counts skipped steps too."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a step may know of its surroundings.

    ``path``: where in the nest of wrappers (an entry may be a tuple with a label for each tensor of a batch).
    ``slot``: group, bucket, part and worker: steps that are under way at once have other buffers. ``name``:
    of the tensor, where a method is written for one. ``plan``: of the policy. ``learning_rate``: of this
    step, or 1 throughout where it is not given. ``choose``: from energies of all workers to the policy's
    rung; ``tell``: takes them where the plan measures and has chosen the rung already. ``norms``: of each
    worker's whole gradient, measured when they are first asked for (on a GPU tensors, f64[]). ``raw``: of
    each worker, ||g||^2 of each tensor before any wrapper, f64[tensors], where the plan asks for norms;
    ``raw_energy``: of the one worker of `at`."""

    seed: int
    step: int
    rank: int
    world_size: int
    workspace: Workspace
    plan: Plan = field(default_factory=lambda: Plan(0))
    path: tuple[Any, ...] = ()
    slot: tuple[int, ...] = ()
    name: str = ""
    learning_rate: float = 1.0
    choose: Callable[[Tensor], int] | None = None
    tell: Callable[[Tensor], object] | None = None
    norms: Callable[[], Sequence[float | Tensor]] | None = None
    raw: Sequence[Tensor] = ()
    raw_energy: Tensor | None = None

    @property
    def measures(self) -> bool:
        """Whether a ladder in here will look at the energies of what it is given."""
        return self.plan.rung is None or self.plan.measures

    def within(self, label: str | tuple[str, ...]) -> Context:
        """Inside of a wrapper: buffers and random numbers are its own."""
        return replace(self, path=(*self.path, label))

    def at(self, worker: int) -> Context:
        """Of one of the workers hosted here, with buffers of its own."""
        raw = self.raw[worker] if self.raw else None
        slot = (*self.slot, worker)
        return replace(self, rank=self.rank + worker, slot=slot, raw_energy=raw)

    def of(self, place: int, name: str) -> Context:
        """Of one tensor of a batch."""
        path = tuple(p[place] if isinstance(p, tuple) else p for p in self.path)
        return replace(self, name=name, path=path)

    def scratch(self, label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A reused 1-d buffer of ``size`` elements; content undefined; valid during this step."""
        key = (self.slot, self.name, self.path, label)
        return self.workspace.scratch(key, size, dtype, device)

    def buffers(self, label: str, batch: Batch) -> list[Tensor]:
        """Reused f32 buffers with the shapes of a batch; content undefined; valid during this step."""
        flat = self.scratch(label, sum(batch.sizes), torch.float32, batch.device)
        shaped = zip(flat.split(batch.sizes), batch.tensors, strict=True)
        return [part.view(tensor.shape) for part, tensor in shaped]

    def keys(self, names: Sequence[str], *, shared: bool) -> counter.Numbers:
        """The keys of the tensors of a batch: i32[tensors]."""
        after: tuple[int | str | tuple[str, ...], ...] = (*self.path, -1 if shared else self.rank)
        return counter.keys((self.seed, self.step), names, after)

    def key(self, *, shared: bool) -> int:
        """A 32-bit key for random numbers of this step and tensor: one for all workers, or one each."""
        return counter.key(self.seed, self.step, self.name, *self.path, -1 if shared else self.rank)


class Sent(Protocol):
    """What a worker has sent of a batch."""

    def subtract_from_(self, batch: Batch) -> None:
        """batch -= decoded, in one pass."""

    def zero_at_(self, batch: Batch) -> None:
        """Zero the entries that were sent; nothing where a payload has no places."""


Step = Generator["Wait", None, Sequence[Any]]
"""Yields what it waits for; returns what each worker hosted here has `Sent`."""


class Compressor:
    """Base of all compressors. Its settings are fields. The object that a user makes is never changed: an
    exchange has a copy.

    ``exact``: it takes tensors of any float type as they are. Others get float32."""

    exact: ClassVar[bool] = False

    def setup(self, like: Batch, world: World) -> None:
        """Make the states for the tensors of a group: see `keep`."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        """Average. ``xs``: the tensors of each worker hosted here, all of the group or some (those of a
        bucket or of a rung). ``out``: where the mean goes; it may be ``xs[0]``, which is read before."""
        raise NotImplementedError

    def keep(self, label: str, states: Sequence[Segments], *, renewed: bool = False) -> None:
        """Have a state, one for each worker hosted here (the same object again where workers share it). A
        checkpoint holds it, and a step that is undone leaves it as it was. ``renewed``: a step takes it from
        `renew` and writes all of it anew."""
        vars(self).setdefault("_kept", {})[label] = Kept(states, renewed=renewed)

    def kept(self, label: str, names: tuple[str, ...]) -> list[Batch]:
        """The state of each worker hosted here, of these tensors."""
        return [state.of(names) for state in self._all_kept[label].now]

    def renew(self, label: str, names: tuple[str, ...]) -> list[tuple[Batch, Batch]]:
        """The same, and where the next state goes: the same place, unless the step may be undone."""
        return self._all_kept[label].renewing(names)

    def states(self, worker: int) -> dict[str, Segments]:
        """All states of a worker hosted here, by label. Those of what is wrapped stand below ``inner.``"""
        found = {label: kept.committed[worker] for label, kept in self._all_kept.items()}
        for prefix, inside in self.inside():
            found |= {f"{prefix}.{label}": one for label, one in inside.states(worker).items()}
        return found

    def every_kept(self) -> Iterator[tuple[str, Kept]]:
        """All states of all workers, those of what is wrapped too, with the last part of their labels."""
        yield from self._all_kept.items()
        for _, inside in self.inside():
            yield from inside.every_kept()

    def inside(self) -> Iterator[tuple[str, Compressor]]:
        """The compressors that this one is made of, by what the labels of their states begin with."""
        yield from ()

    @property
    def _all_kept(self) -> dict[str, Kept]:
        found: dict[str, Kept] = vars(self).get("_kept", {})
        return found


class Wrapper(Compressor):
    """A compressor around an ``inner`` one."""

    inner: Compressor

    def setup(self, like: Batch, world: World) -> None:
        self.inner.setup(like, world)

    def inside(self) -> Iterator[tuple[str, Compressor]]:
        yield "inner", self.inner


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

    def each(self, batch: Batch) -> Iterator[tuple[Batch, Any]]:
        places = {name: place for place, name in enumerate(batch.names)}
        for names, sent in self.parts:
            yield batch.part([places[name] for name in names]), sent

    def subtract_from_(self, batch: Batch) -> None:
        for part, sent in self.each(batch):
            sent.subtract_from_(part)

    def zero_at_(self, batch: Batch) -> None:
        for part, sent in self.each(batch):
            sent.zero_at_(part)


def apart(names: Sequence[tuple[str, ...]], returned: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """What each worker has sent, from what steps of parts have returned. ``names``: of each part."""
    if len(returned) == 1:
        return returned[0]
    return [Apart(list(zip(names, one, strict=True))) for one in zip(*returned, strict=True)]


class PerTensor(Compressor):
    """A method of one's own that is written for one tensor, in two functions. What it sends of all tensors
    travels in one collective."""

    @abstractmethod
    def compress(self, tensor: Tensor, context: Context) -> Sequence[Tensor]:
        """What is sent of a tensor (f32, contiguous, any shape): tensors whose sizes depend on its shape
        alone."""

    @abstractmethod
    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        """A tensor of this shape, f32, from flat tensors that `compress` has made here or elsewhere."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [self._parts_of(x, context.at(worker)) for worker, x in enumerate(xs)]
        self._refuse_unlike(xs[0].names, sent, world, context.path)
        layout = _Layout([(part.numel(), part.dtype) for parts in sent[0] for part in parts])
        rows = [layout.row([part for parts in own for part in parts]) for own in sent]
        counts = [len(parts) for parts in sent[0]]
        wait = world.gather(rows, ("parts", context.slot, context.path), layout.num_bytes / 4)
        yield wait
        every = [layout.parts(row, counts) for row in wait.rows]
        for place, tensor in enumerate(out.tensors):
            total = torch.zeros_like(tensor)
            for parts in every:
                total += self._decompressed(parts[place], tensor.shape) * (1.0 / world.size)
            tensor.copy_(total)
        return [_Parts(self, parts) for parts in sent]

    def _parts_of(self, x: Batch, context: Context) -> list[list[Tensor]]:
        each = enumerate(zip(x.names, x.tensors, strict=True))
        compressed = [
            _checked_parts(self.compress(tensor, context.of(i, name)), name)
            for i, (name, tensor) in each
        ]
        return [[part.contiguous().view(-1) for part in parts] for parts in compressed]

    def _refuse_unlike(
        self, names: tuple[str, ...], sent: Sequence[Any], world: World, path: tuple[Any, ...]
    ) -> None:
        """Raise ValueError where workers would send rows of other sizes or types: each cuts all rows by its
        own. Ranks tell each other when their own are new."""
        every = [[_described(parts) for parts in own] for own in sent]
        if not world.simulated:
            agreed: set[Hashable] = vars(self).setdefault("_agreed", set())
            here = path, names, tuple(every[0])
            if here in agreed:
                return
            every = [json.loads(told) for told in world.tell(json.dumps(every[0]), None)]
        for name, *each in zip(names, *every, strict=True):
            if other := [one for one in each if one != each[0]]:
                raise ValueError(
                    f"compress: it has returned {each[0]} for {name} at one worker and {other[0]} at "
                    "another; sizes and types may depend on the shape alone: pad to the largest"
                )
        if not world.simulated:
            agreed.add(here)

    def _decompressed(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        """What `decompress` returns, in this shape. Raises ValueError where it is no such tensor."""
        found = self.decompress(parts, shape)
        if not isinstance(found, Tensor) or found.numel() != shape.numel():
            is_tensor = isinstance(found, Tensor)
            got = f"one of shape {tuple(found.shape)}" if is_tensor else type(found).__name__
            raise ValueError(f"decompress: a tensor of shape {tuple(shape)}, got {got}")
        return found.reshape(shape)


@dataclass(frozen=True)
class _Parts:
    """What was sent of each tensor by a `PerTensor`."""

    method: PerTensor
    parts: list[list[Tensor]]

    def subtract_from_(self, batch: Batch) -> None:
        for tensor, parts in zip(batch.tensors, self.parts, strict=True):
            tensor -= self.method._decompressed(parts, tensor.shape)

    def zero_at_(self, batch: Batch) -> None:
        """Everything was sent: there are no places."""


def _checked_parts(parts: object, name: str) -> Sequence[Tensor]:
    """What `PerTensor.compress` has returned for a tensor. Raises ValueError where it is no list of dense
    tensors."""
    wanted = "compress: a list of dense tensors, got"
    if not isinstance(parts, Sequence):
        raise ValueError(f"{wanted} {type(parts).__name__} for {name}")
    for part in parts:
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            sparse = "a sparse " * isinstance(part, Tensor)
            raise ValueError(f"{wanted} {sparse}{type(part).__name__} in it for {name}")
    return parts


def _described(parts: Sequence[Tensor]) -> str:
    each = (f"{part.numel()} {str(part.dtype).removeprefix('torch.')}" for part in parts)
    return " and ".join(each) or "nothing"


class _Layout:
    """Where flat tensors of these sizes and types lie in a row of bytes: each at a multiple of its element,
    the row filled up to a multiple of 8 at least. ``num_bytes``: of the tensors."""

    def __init__(self, kinds: Sequence[tuple[int, torch.dtype]]) -> None:
        self.kinds, self.starts, self.num_bytes, end = kinds, list[int](), 0, 0
        for count, dtype in kinds:
            start = -(-end // dtype.itemsize) * dtype.itemsize
            end = start + count * dtype.itemsize
            self.starts.append(start)
            self.num_bytes += count * dtype.itemsize
        widest = max([8, *(dtype.itemsize for _, dtype in kinds)])  # other rows follow this one
        self.size = -(-end // widest) * widest

    def row(self, parts: Sequence[Tensor]) -> Tensor:
        """u8[size]. Raises ValueError."""
        if not parts:
            raise ValueError(
                "compress: it has returned no tensor for any parameter; return one at least"
            )
        row = torch.zeros(self.size, dtype=torch.uint8, device=parts[0].device)
        for part, start in zip(parts, self.starts, strict=True):
            row[start : start + part.nbytes].copy_(part.view(torch.uint8))
        return row

    def parts(self, row: Tensor, counts: Sequence[int]) -> list[list[Tensor]]:
        """The tensors of a row. ``counts``: how many belong together."""
        pairs = zip(self.starts, self.kinds, strict=True)
        flat = iter([row[at : at + n * dtype.itemsize].view(dtype) for at, (n, dtype) in pairs])
        return [[next(flat) for _ in range(count)] for count in counts]


def nested(compressor: object) -> Iterator[object]:
    """A compressor and all it is made of, outermost first."""
    yield compressor
    if is_dataclass(compressor):
        for part in fields(compressor):
            value = getattr(compressor, part.name)
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, Compressor):
                    yield from nested(inner)


def keeps_state(compressor: Compressor) -> bool:
    """Whether a method that wraps no other one has a state."""
    return type(compressor).setup is not Compressor.setup


def check_complete(compressor: object) -> None:
    """Raise ValueError where a part is no compressor, or lacks what its step will ask for, before any rank
    has started."""
    for part in nested(compressor):
        name = type(part).__name__
        if not isinstance(part, Compressor):
            raise ValueError(
                f"compressor: {name} is no Compressor; derive it from a class of dgc_repro.extend "
                "(docs/adding-a-compressor.md)"
            )
        for before, now in (("encode", "encode_batch"), ("choose", "choose_all")):
            if hasattr(part, before) and hasattr(part, now):
                raise ValueError(
                    f"compressor: {name}.{before} is not called; write {now} in its place "
                    "(docs/adding-a-compressor.md)"
                )
        if hasattr(part, "exchange") or hasattr(part, "exchange_batch"):
            raise ValueError(
                f"compressor: {name} has an exchange that yields requests, which no version since December "
                "2026 serves; write a step in its place (docs/adding-a-compressor.md)"
            )
        for needed in getattr(part, "needs", ()):
            if not hasattr(part, needed):
                raise ValueError(
                    f"compressor: {name} has no attribute {needed}; give it one "
                    "(docs/adding-a-compressor.md)"
                )


@runtime_checkable
class FitsModel(Protocol):
    """A compressor with a setting that not every model allows."""

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Raise ValueError, beginning with the bare field, where tensors of these shapes do not suit."""


@runtime_checkable
class Measurable(Protocol):
    """A compressor that can tell the energy of what it would send, as a `Ladder` needs."""

    def energies(self, batch: Batch, context: Context) -> Tensor:
        """||x||^2 - ||x - C(x)||^2 of each tensor, f64[tensors], without changing anything
        (compressor/explained.py)."""
