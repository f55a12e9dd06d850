"""One flat buffer and one collective for all requests of a kind in one round.

A `Collective` takes the requests of one worker after another (`add`), so that simulated workers need
one gradient at a time, is then sent (`send`: the collective is under way), and answers when it has
landed. Buffers are reused from step to step.

Alignment: a part starts at a multiple of its element size; the filling in between is sent, and
counted, like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dgc_repro.exchange.ledger import GRADIENT
from dgc_repro.exchange.payload import Alone, AnyPayload, BatchPayload, Gathered, num_bytes
from dgc_repro.exchange.requests import (
    Agree,
    AllToAll,
    Choose,
    Gather,
    GatherRagged,
    Max,
    Mean,
    Request,
)
from dgc_repro.exchange.wire import Landing, Link, Sizes
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind
from dgc_repro.kernel.workspace import Workspace

Key = tuple[Any, ...]
"""Where in the nest of its worker's exchange a request stands: the last entry may be a tensor's name."""
Answers = dict[Key, Any]
_I64_BYTES = 8
Places = list[tuple[int, int, torch.dtype]]


@dataclass(frozen=True, slots=True)
class PerWorker:
    """An answer that differs between the workers hosted here."""

    by_worker: Sequence[Any]


@dataclass(frozen=True)
class Seat:
    """What a collective needs: the link, buffers, its place in the step. Exchanges under way at the same
    time (buckets) differ in ``part``, and so do their buffers. ``absent``: tensors whose energies do not
    count, known when the requests are sent (exchange/settle.py)."""

    link: Link
    buffers: Workspace
    round: int
    part: int = 0
    absent: Callable[[], Collection[str]] = tuple

    def slot(self, label: str) -> str:
        """Names what is received in this round of this part."""
        return f"{label} {self.part} {self.round}"

    def buffer(self, label: str, size: int, dtype: torch.dtype) -> Tensor:
        key = (self.slot(label), str(dtype))
        return self.buffers.scratch(key, size, dtype, self.link.wire.device)


class Collective(Protocol):
    """Requests of one kind of one round."""

    landing: Landing | None  # of the collective that answers; None before `send`

    def add(self, asked: Mapping[Key, Any]) -> None:
        """The requests of the next worker hosted here, in the order of tensors."""

    def send(self) -> None:
        """Begin the collective."""

    def answers(self) -> Answers:
        """When it has landed: the answers, the same for all workers, or `PerWorker`."""


class Reduction:
    """`Mean` and `Max` of one dtype, aggregated in place as the workers come, in rank order.

    `Mean` scales by 1 / N while it packs, as DDP does, and then sums: one pass, and with two
    workers the same bits in every world. Tensors that may be overwritten and already lie side by
    side (DDP's buckets) are reduced where they are: no pass over them at all but the scaling.
    """

    def __init__(self, seat: Seat, dtype: torch.dtype, *, maximum: bool) -> None:
        self._seat = seat
        self._dtype = dtype
        self._maximum = maximum
        self._asked: Mapping[Key, Mean | Max] = {}  # of the first worker
        self._views: list[Tensor] = []
        self._flat: Tensor | None = None
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, Mean | Max]) -> None:
        wire = self._seat.link.wire
        batches = [_as_batch(key, request.tensor) for key, request in asked.items()]
        tensors = [tensor for batch in batches for tensor in batch.tensors]
        weight = 1.0 / wire.world_size
        first = self._flat is None
        if first:
            self._asked = asked
            in_place = wire.local_workers == 1 and all(
                isinstance(request, Mean) and request.in_place for request in asked.values()
            )
            self._flat = side_by_side(tensors) if in_place else None
            if self._flat is not None:
                # The collective is the same as after packing (one, of this size, in this order), so that a
                # rank whose tensors lie otherwise still fits in.
                self._views = tensors
            else:
                self._lay_out(batches)
        if self._maximum:
            for view, tensor in zip(self._views, tensors, strict=True):
                view.copy_(tensor) if first else torch.maximum(view, tensor, out=view)
        elif first:
            views = iter(self._views)
            for batch in batches:
                kernels.scale(batch, weight, batch.like([next(views) for _ in batch.tensors]))
        else:
            for view, tensor in zip(self._views, tensors, strict=True):
                # Not add_(alpha=weight): that fuses, and real processes round the product first.
                view.add_(tensor * weight)

    def send(self) -> None:
        assert self._flat is not None
        link = self._seat.link
        label = ""
        if link.check:
            pairs: list[tuple[str, int]] = []
            views = iter(self._views)
            for key, request in self._asked.items():
                batch = _as_batch(key, request.tensor)
                sizes = [next(views).nbytes for _ in batch.names]
                names = [", ".join(request.names)] if request.names else batch.names
                pairs += zip(names, sizes, strict=True)
            label = sized(pairs)
        combine = link.max_ if self._maximum else link.sum_
        self.landing = combine(self._flat, GRADIENT, label)
        link.ledger.floats += self._flat.nbytes / 4

    def answers(self) -> Answers:
        views = iter(self._views)
        return {
            key: [next(views) for _ in request.tensor.names]
            if isinstance(request.tensor, Batch)
            else next(views)
            for key, request in self._asked.items()
        }

    def _lay_out(self, batches: Sequence[Batch]) -> None:
        if not self._dtype.is_floating_point:
            raise TypeError(
                f"Mean and Max take floating-point tensors, {batches[0].names[0]} is {self._dtype}"
            )
        sizes = [size for batch in batches for size in batch.sizes]
        label = "max" if self._maximum else "mean"
        self._flat = self._seat.buffer(label, sum(sizes), self._dtype)
        tensors = (tensor for batch in batches for tensor in batch.tensors)
        self._views = [
            part.view(tensor.shape)
            for part, tensor in zip(self._flat.split(sizes), tensors, strict=True)
        ]


def _as_batch(key: Key, tensor: Tensor | Batch) -> Batch:
    return tensor if isinstance(tensor, Batch) else Batch((_name(key),), [tensor.contiguous()])


def _name(key: Key) -> str:
    """The name of the tensor that a request is about."""
    return str(key[-1]) if key else "the tensors"


def _names(asked: Mapping[Key, AllToAll] | Mapping[Key, Choose]) -> list[str]:
    """The names of the tensors that requests are about."""
    return [name for key, request in asked.items() for name in request.names or (_name(key),)]


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """One flat view of tensors that follow each other in one storage, in this order; None where they
    do not, or one is not contiguous."""
    first = tensors[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        follows = tensor.data_ptr() == end and tensor.untyped_storage().data_ptr() == storage
        if not (follows and tensor.is_contiguous()):
            return None
        end += tensor.nbytes
    return first.as_strided(((end - first.data_ptr()) // first.itemsize,), (1,))


def sized(sizes: Iterable[tuple[str, int]]) -> str:
    """Names and sizes for the comparison of what ranks ask."""
    return ": " + ", ".join(f"{name} ({size} bytes)" for name, size in sizes)


class Gathering:
    """`Gather`: everybody knows the sizes of all payloads, so that nothing but the parts travels."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._asked: Mapping[Key, Gather] = {}  # of the first worker: the layout
        self._flats: list[Tensor] = []
        self._layouts: list[Places] = []  # by rank
        self._rows: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, Gather]) -> None:
        payloads = [request.payload for request in asked.values()]
        if not self._flats:
            self._asked = asked
            self._lay_out()
        rank = self._seat.link.wire.rank + len(self._flats)
        label = f"gather{len(self._flats)}"
        self._flats.append(packed(payloads, self._layouts[rank], self._size, self._seat, label))

    def _lay_out(self) -> None:
        ranks = range(self._seat.link.wire.world_size)
        every = list(self._asked.values())
        if all(request.layouts is None for request in every):
            layout, self._size = places(kinds(request.payload for request in every))
            self._layouts = [layout for _ in ranks]
            return
        laid_out = [places(kinds(_laid_out(request, rank) for request in every)) for rank in ranks]
        self._layouts = [layout for layout, _ in laid_out]
        self._size = max(size for _, size in laid_out)

    def send(self) -> None:
        link = self._seat.link
        label = ""
        if link.check:  # rank 0's sizes, which every rank knows
            label = sized(
                pair for key, r in self._asked.items() for pair in bytes_of(key, _laid_out(r, 0))
            )
        slot = self._seat.slot("gather")
        self._rows, self.landing = link.gather(self._flats, GRADIENT, label, slot)
        link.ledger.floats += sum(r.payload.num_floats for r in self._asked.values())

    def answers(self) -> Answers:
        received: dict[Key, list[Any]] = {key: [] for key in self._asked}
        for rank, row in enumerate(self._rows):
            parts = iter(read_parts(row, self._layouts[rank]))
            for key, request in self._asked.items():
                payload = _laid_out(request, rank)
                received[key].append(payload.like([next(parts) for _ in payload.parts]))
        return {key: Gathered(payloads) for key, payloads in received.items()}


def _laid_out(request: Gather | GatherRagged, rank: int) -> AnyPayload:
    """A payload laid out as this rank's."""
    return request.payload if request.layouts is None else request.layouts[rank]


def kinds(payloads: Iterable[AnyPayload]) -> list[Kind]:
    """Length and type of every part."""
    return [(part.numel(), part.dtype) for payload in payloads for part in payload.parts]


def packed(
    payloads: Sequence[AnyPayload], layout: Places, size: int, seat: Seat, label: str
) -> Tensor:
    """The parts of payloads in one flat u8 buffer: a batch's own, where it is alone, or one of the seat's."""
    first = payloads[0]
    if len(payloads) == 1 and isinstance(first, BatchPayload) and first.buffer.numel() == size:
        return first.buffer
    flat = seat.buffer(label, size, torch.uint8)
    write_parts(flat, [part for payload in payloads for part in payload.parts], layout)
    return flat


def bytes_of(key: Key, payload: AnyPayload) -> list[tuple[str, int]]:
    """Names and sizes of the tensors in a payload, for the comparison of what ranks ask."""
    if isinstance(payload, BatchPayload):
        sizes = [size for size, _ in payload.by_tensor()]
        return list(zip(payload.names, sizes, strict=True))
    return [(_name(key), num_bytes(payload))]


class RaggedGathering:
    """`GatherRagged`: the lengths travel first (8 bytes a part of each tensor), then everybody fills up
    to the longest."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._asked: Mapping[Key, GatherRagged] = {}  # of the first worker: the layouts
        self._payloads: list[list[AnyPayload]] = []  # of every worker hosted here
        self._lengths: list[list[list[int]]] = []  # by rank and payload
        self._layouts: list[Places] = []  # by rank
        self._rows: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, GatherRagged]) -> None:
        self._asked = self._asked or asked
        self._payloads.append([request.payload for request in asked.values()])

    def send(self) -> None:
        link, slot = self._seat.link, self._seat.slot("ragged")
        label = ""
        if link.check:
            pairs = (pair for key, r in self._asked.items() for pair in bytes_of(key, r.payload))
            label = f": {', '.join(name for name, _ in pairs)}"
        lengths = [[lengths_of(payload) for payload in own] for own in self._payloads]
        headers = [
            torch.tensor([n for one in own for n in one], dtype=torch.int64) for own in lengths
        ]
        told, landing = link.gather(
            [header.view(torch.uint8).to(link.wire.device) for header in headers],
            GRADIENT, f"sizes{label}", f"{slot} sizes",
        )  # fmt: skip
        landing.wait()
        counts = [len(one) for one in lengths[0]]
        self._lengths = []
        self._layouts = []
        sizes = []
        for rank, row in enumerate(told):
            numbers = iter(row.view(torch.int64).tolist())
            by_payload = [[next(numbers) for _ in range(count)] for count in counts]
            self._lengths.append(by_payload)
            every = zip(self._asked.values(), by_payload, strict=True)
            kinds_here = [k for r, n in every for k in parts_of_lengths(_laid_out(r, rank), n)]
            layout, size = places(kinds_here)
            self._layouts.append(layout)
            sizes.append(size)
        longest = max(sizes)
        flats = []
        for index, own in enumerate(self._payloads):
            layout = self._layouts[link.wire.rank + index]
            flats.append(packed(own, layout, longest, self._seat, f"ragged{index}"))
        self._rows, self.landing = link.gather(flats, GRADIENT, label, slot)
        link.ledger.floats += sum(payload.num_floats for payload in self._payloads[0])

    def answers(self) -> Answers:
        received: dict[Key, list[Any]] = {key: [] for key in self._asked}
        for rank, row in enumerate(self._rows):
            parts = iter(read_parts(row, self._layouts[rank]))
            for (key, request), lengths in zip(
                self._asked.items(), self._lengths[rank], strict=True
            ):
                payload = _laid_out(request, rank)
                own = [next(parts) for _ in payload.parts]
                received[key].append(like(payload, own, lengths, ragged=True))
        return {key: Gathered(payloads) for key, payloads in received.items()}


def like(
    payload: AnyPayload, parts: Sequence[Tensor], lengths: Sequence[int], *, ragged: bool
) -> Any:
    """A payload like this one whose parts arrived."""
    if ragged and isinstance(payload, BatchPayload | Alone) and payload.ragged:
        return payload.like_ragged(parts, lengths)
    return payload.like(parts)


def lengths_of(payload: AnyPayload) -> list[int]:
    """What travels before a ragged payload: how long each part of each tensor is."""
    if isinstance(payload, BatchPayload | Alone) and payload.ragged:
        return payload.lengths
    return [part.numel() for part in payload.parts]


def parts_of_lengths(payload: AnyPayload, lengths: Sequence[int]) -> list[Kind]:
    """The parts of a payload like this one whose lengths have come."""
    if isinstance(payload, BatchPayload | Alone) and payload.ragged:
        return payload.kinds(lengths)
    return [(n, part.dtype) for n, part in zip(lengths, payload.parts, strict=True)]


class AllToAllBatch:
    """`AllToAll`: one buffer a worker, cut by destination; each piece holds all tensors' payloads for
    one worker. With ``ragged`` the lengths of the parts travel first (8 bytes a part)."""

    def __init__(self, seat: Seat, *, ragged: bool) -> None:
        self._seat = seat
        self._ragged = ragged
        self._asked: list[Mapping[Key, AllToAll]] = []  # of every worker hosted here
        self._flats: list[Tensor] = []
        self._sent: list[list[int]] = []  # bytes by worker hosted here and destination
        self._lengths: list[list[list[list[int]]]] = []  # by worker here, source and payload
        self._layouts: list[list[Places]] = []  # by worker hosted here and source
        self._rows: list[list[Tensor]] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, AllToAll]) -> None:
        """Packed at once: a simulated worker may use its buffers again when it is resumed."""
        index, wire = len(self._asked), self._seat.link.wire
        own = wire.rank + index
        pieces = []
        for rank in range(wire.world_size):
            parts = [part for p in self._sends(asked, own, rank) for part in p.parts]
            pieces.append((parts, *places([(part.numel(), part.dtype) for part in parts])))
        sizes = [size for _, _, size in pieces]
        label = "swap ragged" if self._ragged else "swap"
        flat = self._seat.buffer(f"{label}{index}", sum(sizes), torch.uint8)
        for piece, (parts, layout, _) in zip(flat.split(sizes), pieces, strict=True):
            write_parts(piece, parts, layout)
        self._asked.append(asked)
        self._flats.append(flat)
        self._sent.append(sizes)

    def send(self) -> None:
        link = self._seat.link
        label = f": {', '.join(_names(self._asked[0]))}"
        self._lengths = self._send_lengths(label) if self._ragged else self._known()
        sizes = []
        for own, (sent, lengths) in enumerate(
            zip(self._sent, self._lengths, strict=True), link.wire.rank
        ):
            asked = self._asked[own - link.wire.rank]
            laid_out = []
            for source, by_payload in enumerate(lengths):
                comes = zip(self._comes(asked, own, source), by_payload, strict=True)
                laid_out.append(places([part for p, n in comes for part in parts_of_lengths(p, n)]))
            self._layouts.append([layout for layout, _ in laid_out])
            sizes.append(Sizes(sent, [size for _, size in laid_out]))
        slot = self._seat.slot("swap ragged" if self._ragged else "swap")
        self._rows, self.landing = link.all_to_all(self._flats, sizes, GRADIENT, label, slot)
        for rank in range(link.wire.world_size):
            others = self._sends(self._asked[0], link.wire.rank, rank)
            link.ledger.floats += sum(payload.num_floats for payload in others)

    def answers(self) -> Answers:
        received: dict[Key, list[list[Any]]] = {key: [] for key in self._asked[0]}
        first = self._seat.link.wire.rank
        for index, (asked, rows) in enumerate(zip(self._asked, self._rows, strict=True)):
            for key in asked:
                received[key].append([])
            for source, row in enumerate(rows):
                parts = iter(read_parts(row, self._layouts[index][source]))
                lengths = iter(self._lengths[index][source])
                for key, request in asked.items():
                    payload = request.expected[source]
                    if source == first + index:
                        payload = request.payloads[source]
                    elif payload is not None:
                        came = [next(parts) for _ in payload.parts]
                        payload = like(payload, came, next(lengths), ragged=self._ragged)
                    received[key][index].append(payload)
        return {key: PerWorker(lists) for key, lists in received.items()}

    def _known(self) -> list[list[list[list[int]]]]:
        """Lengths of what comes, by worker hosted here, source and payload."""
        ranks = range(self._seat.link.wire.world_size)
        return [
            [[lengths_of(p) for p in self._comes(asked, own, source)] for source in ranks]
            for own, asked in enumerate(self._asked, self._seat.link.wire.rank)
        ]

    def _send_lengths(self, label: str) -> list[list[list[list[int]]]]:
        """The same, asked of those who send."""
        link = self._seat.link
        known = self._known()
        flats, sizes = [], []
        for own, asked in enumerate(self._asked, link.wire.rank):
            to = [
                [n for payload in self._sends(asked, own, rank) for n in lengths_of(payload)]
                for rank in range(link.wire.world_size)
            ]
            lengths = torch.tensor([n for numbers in to for n in numbers], dtype=torch.int64)
            flats.append(lengths.view(torch.uint8).to(link.wire.device))
            come = [sum(map(len, source)) for source in known[own - link.wire.rank]]
            sizes.append(Sizes([_I64_BYTES * len(n) for n in to], [_I64_BYTES * n for n in come]))
        slot = self._seat.slot("swap sizes")
        told, landing = link.all_to_all(flats, sizes, GRADIENT, f" sizes{label}", slot)
        landing.wait()
        found: list[list[list[list[int]]]] = []
        for rows, by_source in zip(told, known, strict=True):
            found.append([])
            for row, by_payload in zip(rows, by_source, strict=True):
                numbers = iter(row.view(torch.int64).tolist())
                found[-1].append([[next(numbers) for _ in like] for like in by_payload])
        return found

    @staticmethod
    def _sends(asked: Mapping[Key, AllToAll], own: int, rank: int) -> list[AnyPayload]:
        """What a worker has for another."""
        to = (request.payloads[rank] for request in asked.values() if rank != own)
        return [payload for payload in to if payload is not None]

    @staticmethod
    def _comes(asked: Mapping[Key, AllToAll], own: int, source: int) -> list[AnyPayload]:
        """Payloads laid out as those that come from another worker."""
        come = (request.expected[source] for request in asked.values() if source != own)
        return [payload for payload in come if payload is not None]


class Agreement:
    """`Agree`: rank 0's tensors, moved as bytes."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._asked: Mapping[Key, Agree] = {}
        self._parts: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, Agree]) -> None:
        self._asked = self._asked or asked

    def send(self) -> None:
        link = self._seat.link
        tensors = {name: request.tensor.contiguous() for name, request in self._asked.items()}
        layout, size = places([(t.numel(), t.dtype) for t in tensors.values()])
        flat = self._seat.buffer("agree", size, torch.uint8)
        write_parts(flat, [t.view(-1) for t in tensors.values()], layout)
        self.landing = link.broadcast_(flat, GRADIENT, f": {', '.join(map(_name, tensors))}")
        link.ledger.floats += sum(t.nbytes for t in tensors.values()) / 4
        self._parts = read_parts(flat, layout)

    def answers(self) -> Answers:
        asked = zip(self._asked.items(), self._parts, strict=True)
        return {name: part.view(request.tensor.shape) for (name, request), part in asked}


class Choice:
    """`Choose`: energies summed over tensors but the absent ones, averaged over workers, one answer for
    all."""

    def __init__(self, seat: Seat, choose: Any) -> None:
        self._seat = seat
        self._choose = choose
        self._asked: list[Mapping[Key, Choose]] = []  # of every worker hosted here
        self._sum: Tensor | None = None
        self.landing: Landing | None = None

    def add(self, asked: Mapping[Key, Choose]) -> None:
        self._asked.append(asked)

    def send(self) -> None:
        names, absent = _names(self._asked[0]), self._seat.absent()
        for asked in self._asked:
            energies = self._of_worker(asked, names, absent)
            self._sum = energies if self._sum is None else self._sum + energies
        assert self._sum is not None
        # In float64 to the end: rounded before the sum, simulated and real workers could choose otherwise.
        self.landing = self._seat.link.sum_(self._sum, GRADIENT, f": {', '.join(names)}")
        self._seat.link.ledger.floats += self._sum.numel()

    def answers(self) -> Answers:
        assert self._sum is not None
        rung = self._choose(self._sum.float())
        self._seat.link.agree(f"rung {rung} of the policy's choice")
        return dict.fromkeys(self._asked[0], rung)

    def _of_worker(
        self, asked: Mapping[Key, Choose], names: Sequence[str], absent: Collection[str]
    ) -> Tensor:
        every = torch.cat([torch.atleast_2d(r.energies) for r in asked.values()]).double()
        for index, name in enumerate(names if absent else ()):
            if name in absent:
                every[index] = 0
        return every.sum(0) * (1.0 / self._seat.link.wire.world_size)


def kind(request: Request) -> tuple[int, str]:
    """Requests of one kind share a collective; kinds sort into the order they are served in."""
    order = (Choose, Agree, Max, Mean, Gather, GatherRagged, AllToAll)
    dtype = str(_dtype(request)) if isinstance(request, Mean | Max) else ""
    if isinstance(request, AllToAll) and request.ragged:
        dtype = "ragged"
    return order.index(type(request)), dtype


def _dtype(request: Mean | Max) -> torch.dtype:
    tensor = request.tensor
    return (tensor.tensors[0] if isinstance(tensor, Batch) else tensor).dtype


def make_collective(request: Request, seat: Seat, choose: Any) -> Collective:
    """The collective that serves requests like this one."""
    match request:
        case Mean() | Max():
            return Reduction(seat, _dtype(request), maximum=isinstance(request, Max))
        case Gather():
            return Gathering(seat)
        case GatherRagged():
            return RaggedGathering(seat)
        case AllToAll():
            return AllToAllBatch(seat, ragged=request.ragged)
        case Agree():
            return Agreement(seat)
        case Choose():
            return Choice(seat, choose)


def places(
    parts: Sequence[tuple[int, torch.dtype]],
) -> tuple[list[tuple[int, int, torch.dtype]], int]:
    """(start byte, end byte, dtype) of each part in a flat u8 buffer, and the buffer's size."""
    layout = []
    end = 0
    for numel, dtype in parts:
        start = -(-end // dtype.itemsize) * dtype.itemsize
        end = start + numel * dtype.itemsize
        layout.append((start, end, dtype))
    # A row of a gathered buffer must begin aligned for the widest type inside.
    return layout, -(-end // _I64_BYTES) * _I64_BYTES


def write_parts(
    flat: Tensor, parts: Sequence[Tensor], layout: Sequence[tuple[int, int, torch.dtype]]
) -> None:
    """Copy the parts into a flat u8 buffer."""
    for part, (start, end, dtype) in zip(parts, layout, strict=True):
        if end > start:
            _typed(flat[start:end], dtype).copy_(part)


def read_parts(flat: Tensor, layout: Sequence[tuple[int, int, torch.dtype]]) -> list[Tensor]:
    """Views of the parts in a flat u8 buffer."""
    return [_typed(flat[start:end], dtype) for start, end, dtype in layout]


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes read as another type. (A view that changes nothing costs as much as one that does.)"""
    return part if dtype == torch.uint8 else part.view(dtype)
