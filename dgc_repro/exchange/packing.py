"""One flat buffer and one collective for all requests of a kind in one round.

A `Batch` takes the requests of one worker after another (`add`), so that simulated workers need
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
from dgc_repro.exchange.payload import Gathered, Payload, num_bytes
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
from dgc_repro.kernel import native
from dgc_repro.kernel.workspace import Finite, Workspace

Answers = dict[str, Any]
_I64_BYTES = 8
Places = list[tuple[int, int, torch.dtype]]
Kind = tuple[int, torch.dtype]  # length and type of a part


@dataclass(frozen=True, slots=True)
class PerWorker:
    """An answer that differs between the workers hosted here."""

    by_worker: Sequence[Any]


@dataclass(frozen=True)
class Seat:
    """What a batch needs: the link, buffers, its place in the step. Exchanges under way at the same
    time (buckets) differ in ``part``, and so do their buffers. ``absent``: tensors whose energies do not
    count, known when a batch is sent (exchange/settle.py)."""

    link: Link
    buffers: Workspace
    round: int
    part: int = 0
    finite: Finite | None = None  # told of tensors that packing has found finite
    absent: Callable[[], Collection[str]] = tuple

    def slot(self, label: str) -> str:
        """Names what is received in this round of this part."""
        return f"{label} {self.part} {self.round}"

    def buffer(self, label: str, size: int, dtype: torch.dtype) -> Tensor:
        key = (self.slot(label), str(dtype))
        return self.buffers.scratch(key, size, dtype, self.link.wire.device)


class Batch(Protocol):
    """Requests of one kind of one round."""

    landing: Landing | None  # of the collective that answers; None before `send`

    def add(self, asked: Mapping[str, Any]) -> None:
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
        self._views: dict[str, Tensor] = {}
        self._flat: Tensor | None = None
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, Mean | Max]) -> None:
        wire = self._seat.link.wire
        weight = 1.0 / wire.world_size
        first = self._flat is None
        if first and wire.local_workers == 1 and self._reduce_where_they_lie(asked, weight):
            return
        if first:
            self._lay_out(asked)
        for name, request in asked.items():
            view, tensor = self._views[name], request.tensor
            if self._maximum:
                view.copy_(tensor) if first else torch.maximum(view, tensor, out=view)
            elif first:
                if _scale(tensor, weight, view) and self._seat.finite is not None:
                    self._seat.finite.add(tensor)
            else:
                # Not add_(alpha=weight): that fuses, and real processes round the product first.
                view.add_(tensor * weight)

    def send(self) -> None:
        assert self._flat is not None
        link = self._seat.link
        label = (
            sized((name, view.nbytes) for name, view in self._views.items()) if link.check else ""
        )
        combine = link.max_ if self._maximum else link.sum_
        self.landing = combine(self._flat, GRADIENT, label)
        link.ledger.floats += self._flat.nbytes / 4

    def answers(self) -> Answers:
        return dict(self._views)

    def _reduce_where_they_lie(self, asked: Mapping[str, Mean | Max], weight: float) -> bool:
        """Whether it could be done. The collective is the same as after packing (one, of this size, in
        this order), so that a rank whose tensors lie otherwise still fits in."""
        if not all(isinstance(request, Mean) and request.in_place for request in asked.values()):
            return False
        flat = side_by_side([request.tensor for request in asked.values()])
        if flat is None:
            return False
        if _scale(flat, weight, flat) and self._seat.finite is not None:
            for request in asked.values():
                self._seat.finite.add(request.tensor)
        self._flat = flat
        self._views = {name: request.tensor for name, request in asked.items()}
        return True

    def _lay_out(self, asked: Mapping[str, Mean | Max]) -> None:
        if not self._dtype.is_floating_point:
            raise TypeError(
                f"Mean and Max take floating-point tensors, {next(iter(asked))} is {self._dtype}"
            )
        size = sum(request.tensor.numel() for request in asked.values())
        flat = self._seat.buffer("max" if self._maximum else "mean", size, self._dtype)
        self._flat = flat
        start = 0
        for name, request in asked.items():
            end = start + request.tensor.numel()
            self._views[name] = flat[start:end].view(request.tensor.shape)
            start = end


def _scale(tensor: Tensor, weight: float, to: Tensor) -> bool:
    """to = weight * tensor; True where the same pass has found every value finite."""
    if native.usable(tensor) and tensor.is_contiguous():
        return native.scale(tensor, weight, to)
    torch.mul(tensor, weight, out=to)
    return False


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
        self._asked: Mapping[str, Gather] = {}  # of the first worker: the layout
        self._flats: list[Tensor] = []
        self._layouts: list[Places] = []  # by rank
        self._rows: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, Gather]) -> None:
        parts = [part for request in asked.values() for part in request.payload.parts]
        if not self._flats:
            self._asked = asked
            self._lay_out()
        flat = self._seat.buffer(f"gather{len(self._flats)}", self._size, torch.uint8)
        rank = self._seat.link.wire.rank + len(self._flats)
        write_parts(flat, parts, self._layouts[rank])
        self._flats.append(flat)

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
        payloads = {name: request.payload for name, request in self._asked.items()}
        label = ""
        if link.check:  # rank 0's sizes, which every rank knows
            label = sized((n, num_bytes(_laid_out(r, 0))) for n, r in self._asked.items())
        slot = self._seat.slot("gather")
        self._rows, self.landing = link.gather(self._flats, GRADIENT, label, slot)
        link.ledger.floats += sum(payload.num_floats for payload in payloads.values())

    def answers(self) -> Answers:
        received: dict[str, list[Payload]] = {name: [] for name in self._asked}
        for rank, arrived in enumerate(read_rows(self._rows, self._layouts)):
            parts = iter(arrived)
            for name, request in self._asked.items():
                payload = _laid_out(request, rank)
                received[name].append(payload.like([next(parts) for _ in payload.parts]))
        return {name: Gathered(payloads) for name, payloads in received.items()}


def _laid_out(request: Gather | GatherRagged, rank: int) -> Payload:
    """A payload laid out as this rank's."""
    return request.payload if request.layouts is None else request.layouts[rank]


def kinds(payloads: Iterable[Payload]) -> list[Kind]:
    """Length and type of every part."""
    return [(part.numel(), part.dtype) for payload in payloads for part in payload.parts]


class RaggedGathering:
    """`GatherRagged`: the lengths travel first (8 bytes a part), then everybody fills up to the
    longest."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._asked: Mapping[str, GatherRagged] = {}  # of the first worker: the layouts
        self._payloads: list[dict[str, Payload]] = []  # of every worker hosted here
        self._layouts: list[tuple[list[tuple[int, int, torch.dtype]], int]] = []
        self._rows: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, GatherRagged]) -> None:
        self._asked = self._asked or asked
        self._payloads.append({name: request.payload for name, request in asked.items()})

    def send(self) -> None:
        link, slot = self._seat.link, self._seat.slot("ragged")
        names = self._payloads[0]
        label = f": {', '.join(names)}"
        own_parts = [
            [part for p in worker.values() for part in p.parts] for worker in self._payloads
        ]
        lengths = [torch.tensor([part.numel() for part in parts]) for parts in own_parts]
        headers = [length.view(torch.uint8).to(link.wire.device) for length in lengths]
        told, landing = link.gather(headers, GRADIENT, f"sizes{label}", f"{slot} sizes")
        landing.wait()
        everybody = [row.view(torch.int64).tolist() for row in told]
        dtypes = [part.dtype for part in own_parts[0]]
        self._layouts = [places(list(zip(sizes, dtypes, strict=True))) for sizes in everybody]
        longest = max(size for _, size in self._layouts)
        flats = []
        for index, parts in enumerate(own_parts):
            flat = self._seat.buffer(f"ragged{index}", longest, torch.uint8)
            write_parts(flat, parts, self._layouts[link.wire.rank + index][0])
            flats.append(flat)
        self._rows, self.landing = link.gather(flats, GRADIENT, label, slot)
        link.ledger.floats += sum(payload.num_floats for payload in names.values())

    def answers(self) -> Answers:
        received: dict[str, list[Payload]] = {name: [] for name in self._asked}
        layouts = [layout for layout, _ in self._layouts]
        for rank, arrived in enumerate(read_rows(self._rows, layouts)):
            parts = iter(arrived)
            for name, request in self._asked.items():
                payload = _laid_out(request, rank)
                received[name].append(payload.like([next(parts) for _ in payload.parts]))
        return {name: Gathered(payloads) for name, payloads in received.items()}


class AllToAllBatch:
    """`AllToAll`: one buffer a worker, cut by destination; each piece holds all tensors' payloads for
    one worker. With ``ragged`` the lengths of the parts travel first (8 bytes a part)."""

    def __init__(self, seat: Seat, *, ragged: bool) -> None:
        self._seat = seat
        self._ragged = ragged
        self._asked: list[Mapping[str, AllToAll]] = []  # of every worker hosted here
        self._flats: list[Tensor] = []
        self._sent: list[list[int]] = []  # bytes by worker hosted here and destination
        self._layouts: list[list[Places]] = []  # by worker hosted here and source
        self._rows: list[list[Tensor]] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, AllToAll]) -> None:
        """Packed at once: a simulated worker may use its buffers again when it is resumed."""
        index, wire = len(self._asked), self._seat.link.wire
        own = wire.rank + index
        pieces = []
        for rank in range(wire.world_size):
            parts = [] if rank == own else self._parts(asked, rank)
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
        label = f": {', '.join(self._asked[0])}"
        come = self._send_lengths(label) if self._ragged else self._known()
        sizes = []
        for sent, sources in zip(self._sent, come, strict=True):
            laid_out = [places(parts) for parts in sources]
            self._layouts.append([layout for layout, _ in laid_out])
            sizes.append(Sizes(sent, [size for _, size in laid_out]))
        slot = self._seat.slot("swap ragged" if self._ragged else "swap")
        self._rows, self.landing = link.all_to_all(self._flats, sizes, GRADIENT, label, slot)
        own = link.wire.rank
        for request in self._asked[0].values():
            others = [p for rank, p in enumerate(request.payloads) if rank != own and p is not None]
            link.ledger.floats += sum(payload.num_floats for payload in others)

    def answers(self) -> Answers:
        received: dict[str, list[list[Payload | None]]] = {name: [] for name in self._asked[0]}
        first = self._seat.link.wire.rank
        for index, (asked, rows) in enumerate(zip(self._asked, self._rows, strict=True)):
            for name in asked:
                received[name].append([])
            for source, arrived in enumerate(read_rows(rows, self._layouts[index])):
                parts = iter(arrived)
                for name, request in asked.items():
                    payload = request.expected[source]
                    if source == first + index:
                        payload = request.payloads[source]
                    elif payload is not None:
                        payload = payload.like([next(parts) for _ in payload.parts])
                    received[name][index].append(payload)
        return {name: PerWorker(lists) for name, lists in received.items()}

    def _known(self) -> list[list[list[Kind]]]:
        """Length and type of what comes, by worker hosted here, source and part."""
        return [
            [self._expected(asked, own, source) for source in range(len(self._sent[0]))]
            for own, asked in enumerate(self._asked, self._seat.link.wire.rank)
        ]

    def _send_lengths(self, label: str) -> list[list[list[Kind]]]:
        """The same, the lengths asked of those who send."""
        link = self._seat.link
        ranks = range(link.wire.world_size)
        known = self._known()
        flats, sizes = [], []
        for own, asked in enumerate(self._asked, link.wire.rank):
            to = [[] if rank == own else self._parts(asked, rank) for rank in ranks]
            lengths = torch.tensor([part.numel() for parts in to for part in parts])
            flats.append(lengths.to(torch.int64).view(torch.uint8).to(link.wire.device))
            come = known[own - link.wire.rank]
            sizes.append(
                Sizes(
                    [_I64_BYTES * len(parts) for parts in to], [_I64_BYTES * len(c) for c in come]
                )
            )
        slot = self._seat.slot("swap sizes")
        told, landing = link.all_to_all(flats, sizes, GRADIENT, f" sizes{label}", slot)
        landing.wait()
        return [
            [
                [
                    (n, dtype)
                    for n, (_, dtype) in zip(row.view(torch.int64).tolist(), c, strict=True)
                ]
                for row, c in zip(rows, come, strict=True)
            ]
            for rows, come in zip(told, known, strict=True)
        ]

    @staticmethod
    def _parts(asked: Mapping[str, AllToAll], rank: int) -> list[Tensor]:
        to = (request.payloads[rank] for request in asked.values())
        return [part for payload in to if payload is not None for part in payload.parts]

    @staticmethod
    def _expected(asked: Mapping[str, AllToAll], own: int, source: int) -> list[Kind]:
        if source == own:
            return []
        come = (request.expected[source] for request in asked.values())
        return kinds(payload for payload in come if payload is not None)


class Agreement:
    """`Agree`: rank 0's tensors, moved as bytes."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._asked: Mapping[str, Agree] = {}
        self._parts: list[Tensor] = []
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, Agree]) -> None:
        self._asked = self._asked or asked

    def send(self) -> None:
        link = self._seat.link
        tensors = {name: request.tensor.contiguous() for name, request in self._asked.items()}
        layout, size = places([(t.numel(), t.dtype) for t in tensors.values()])
        flat = self._seat.buffer("agree", size, torch.uint8)
        write_parts(flat, [t.view(-1) for t in tensors.values()], layout)
        self.landing = link.broadcast_(flat, GRADIENT, f": {', '.join(tensors)}")
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
        self._asked: list[Mapping[str, Choose]] = []  # of every worker hosted here
        self._sum: Tensor | None = None
        self.landing: Landing | None = None

    def add(self, asked: Mapping[str, Choose]) -> None:
        self._asked.append(asked)

    def send(self) -> None:
        names, absent = list(self._asked[0]), self._seat.absent()
        for asked in self._asked:
            energies = self._of_worker(asked, absent)
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

    def _of_worker(self, asked: Mapping[str, Choose], absent: Collection[str]) -> Tensor:
        every = torch.stack([request.energies for request in asked.values()]).double()
        for index, name in enumerate(asked):
            if name in absent:
                every[index] = 0
        return every.sum(0) * (1.0 / self._seat.link.wire.world_size)


def batch_key(request: Request) -> tuple[int, str]:
    """Requests with one key share a collective; keys sort into the order they are served in."""
    order = (Choose, Agree, Max, Mean, Gather, GatherRagged, AllToAll)
    dtype = str(request.tensor.dtype) if isinstance(request, Mean | Max) else ""
    if isinstance(request, AllToAll) and request.ragged:
        dtype = "ragged"
    return order.index(type(request)), dtype


def make_batch(request: Request, seat: Seat, choose: Any) -> Batch:
    """The batch that serves requests like this one."""
    match request:
        case Mean() | Max():
            return Reduction(seat, request.tensor.dtype, maximum=isinstance(request, Max))
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


def read_rows(rows: Sequence[Tensor], layouts: Sequence[Places]) -> list[list[Tensor]]:
    """The parts of each rank, as views of what arrived; headers (parts of one int64) on the CPU.

    Payloads read their headers to know how the rest is coded. Read where they lie, each would make a
    GPU's queue run dry, some hundred times a step; together they are one transfer."""
    arrived = [read_parts(row, layout) for row, layout in zip(rows, layouts, strict=True)]
    if rows and _is_elsewhere(rows[0]):
        heads = [
            (parts, i) for parts in arrived for i, part in enumerate(parts) if _is_header(part)
        ]
        if heads:
            here = _to_cpu(torch.cat([parts[i] for parts, i in heads]))
            for (parts, i), header in zip(heads, here.split(1), strict=True):
                parts[i] = header
    return arrived


def _is_header(part: Tensor) -> bool:
    return part.dtype == torch.int64 and part.numel() == 1


def _is_elsewhere(row: Tensor) -> bool:
    return row.device.type != "cpu"


def _to_cpu(headers: Tensor) -> Tensor:
    return headers.cpu()


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes read as another type. (A view that changes nothing costs as much as one that does.)"""
    return part if dtype == torch.uint8 else part.view(dtype)
