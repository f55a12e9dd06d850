"""One flat buffer and one collective for all requests of a kind in one round.

A `Collective` takes the requests of one worker after another (`add`), so that simulated workers need
one gradient at a time, is then sent (`send`: the collective is under way), and answers when it has
landed. Buffers are reused from step to step.

Alignment: a part starts at a multiple of its element size. The filling in between is sent, and counted,
like everything else. It holds zeros, or what an earlier step has left in the buffer.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from dgc_repro.exchange.ledger import GRADIENT
from dgc_repro.exchange.wire import MAX, SUM, Pending, Sizes
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch, Numbers
from dgc_repro.kernel.layout import Kind
from dgc_repro.payload import ALONE, BatchPayload, Gathered, Payload, num_bytes
from dgc_repro.payload.requests import (
    AllToAll,
    Choose,
    Gather,
    GatherRagged,
    Max,
    Mean,
    Request,
)

if TYPE_CHECKING:
    from dgc_repro.exchange.drive import Lockstep

Key = tuple[Any, ...]
"""Where in the nest of its worker's exchange a request stands: the last entry may be a tensor's name."""
Answers = dict[Key, Any]
_I64_BYTES = 8
Comes = tuple[Key, Payload, Sequence[int] | None]
"""What comes for a request: a payload laid out as this one, whose parts have these lengths if given."""


@dataclass(frozen=True, slots=True)
class PerWorker:
    """An answer that differs between the workers hosted here."""

    by_worker: Sequence[Any]


class Collective(ABC):
    """Requests of one kind of one round of ``lockstep``. ``landing``: of the collective that answers, None
    before `send`."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self._link = lockstep.link
        # Of the first worker hosted here, or of every one.
        self._asked: list[Mapping[Key, Any]] = []
        self.landing: Pending | None = None

    def add(self, asked: Mapping[Key, Any]) -> None:
        """The requests of the next worker hosted here, in the order of tensors."""
        self._asked.append(asked)

    def unread(self) -> list[Any]:
        """`Later.unread` of the payloads that are not made yet."""
        return []

    @abstractmethod
    def send(self) -> None:
        """Begin the collective."""

    @abstractmethod
    def answers(self) -> Answers:
        """When it has landed: the answers, the same for all workers, or `PerWorker`."""


class Reduction(Collective):
    """`Mean` and `Max` of one dtype, aggregated in place as the workers come, in rank order.

    `Mean` scales by 1 / N while it packs, as DDP does, and then sums: one pass, and with two
    workers the same bits in every world. Tensors that may be overwritten and already lie side by
    side (DDP's buckets) are reduced where they are: no pass over them at all but the scaling.
    """

    def add(self, asked: Mapping[Key, Mean | Max]) -> None:
        wire = self._link.wire
        batches = [_as_batch(key, request.tensor) for key, request in asked.items()]
        weight = 1.0 / wire.world_size
        is_first = not self._asked
        if is_first:
            self._asked.append(asked)
            self._lay_out(batches)
        for batch, sums in zip(batches, self._sums, strict=True):
            if self._how == MAX:
                for largest, tensor in zip(sums.tensors, batch.tensors, strict=True):
                    torch.maximum(tensor if is_first else largest, tensor, out=largest)
            elif is_first:
                kernels.scale(batch, weight, sums)
            else:  # as real processes, which round the product before they add
                kernels.add_scaled(batch, weight, sums)

    def send(self) -> None:
        label = ""
        if self._link.check:
            label = sized(
                (", ".join(request.names) or name, tensor.nbytes)
                for request, sums in zip(self._asked[0].values(), self._sums, strict=True)
                for name, tensor in zip(sums.names, sums.tensors, strict=True)
            )
        self.landing = self._link.combine_(self._how, self._flat, GRADIENT, label)
        self._link.ledger.floats += self._flat.nbytes / 4

    def answers(self) -> Answers:
        asked = zip(self._asked[0].items(), self._sums, strict=True)
        return {
            key: sums.tensors if isinstance(request.tensor, Batch) else sums.tensors[0]
            for (key, request), sums in asked
        }

    def _lay_out(self, batches: Sequence[Batch]) -> None:
        requests, tensors = self._asked[0].values(), [x for batch in batches for x in batch.tensors]
        self._how = MAX if isinstance(next(iter(requests)), Max) else SUM
        if self._link.wire.local_workers == 1 and all(
            isinstance(request, Mean) and request.in_place for request in requests
        ):
            flat = side_by_side(tensors)
            if flat is not None:
                # The collective is the same as after packing (one, of this size, in this order), so that a
                # rank whose tensors lie otherwise still fits in.
                self._flat, self._sums = flat, batches
                return
        dtype = tensors[0].dtype
        if not dtype.is_floating_point:
            raise TypeError(
                f"Mean and Max take floating-point tensors, {batches[0].names[0]} is {dtype}"
            )
        size = sum(tensor.numel() for tensor in tensors)
        self._flat = self._lockstep.buffer(self._how, size, dtype)
        self._sums = self._lockstep.shaped(self._how, self._flat, batches)


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


class Collection(Collective):
    """`Gather`, `GatherRagged` and `AllToAll`: a buffer a worker, with all tensors' payloads.

    What is gathered goes to all workers, filled up to the longest; an all-to-all cuts the buffer by
    destination. Lengths of ragged payloads travel first (8 bytes a part of each tensor). Otherwise
    all workers know them, and only the parts travel.
    """

    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__(lockstep)
        self._flats: list[Tensor] = []
        self._to: list[list[int]] = []  # bytes, by worker hosted here and destination
        self._lengths: list[list[list[int]]] = []  # of what is sent, in the same way
        self._floats = 0.0  # of the first worker
        self._later: Mapping[Key, Any] = {}

    def add(self, asked: Mapping[Key, Gather | GatherRagged | AllToAll]) -> None:
        """Packed at once: a simulated worker may use its buffers again when it is resumed. What is `Later`
        is packed by `send`, where there is no other worker."""
        if not any(isinstance(one, GatherRagged) and one.is_later for one in asked.values()):
            self._take(asked)
        elif self._link.wire.local_workers > 1:
            self._take(_made(asked))
        else:
            self._later = asked

    def unread(self) -> list[Any]:
        return [one.payload.unread for one in self._later.values() if one.is_later]

    def _take(self, asked: Mapping[Key, Gather | GatherRagged | AllToAll]) -> None:
        first = next(iter(asked.values()))
        self._is_gather, self._is_ragged = isinstance(first, Gather), first.ragged
        self._label = f"{'gather' if self._is_gather else 'swap'}{' ragged' * self._is_ragged}"
        pieces = self._pieces(asked)
        if self._is_ragged:
            self._lengths.append([[n for p in piece for n in lengths_of(p)] for piece in pieces])
        if not self._flats:
            self._floats = sum(payload.num_floats for piece in pieces for payload in piece)
        if not (self._is_gather and self._asked):
            self._asked.append(asked)
        self._flats.append(self._packed(pieces))

    def send(self) -> None:
        if self._later:
            with self._link.clock.span("compress"):
                self._take(_made(self._later))
        link, label = self._link, self._label_for_check()
        self._comes = [self._expected_by_source(i) for i in self._workers]
        if self._is_ragged:
            self._comes = self._with_lengths(f" sizes{label}")
        found = [_places_by_source(by_source) for by_source in self._comes]
        self._layouts = [[layout for layout, _ in by_source] for by_source in found]
        come = [[size for _, size in by_source] for by_source in found]
        if self._is_gather:
            self._fill_up(max(come[0]))
        slot = self._lockstep.slot(self._label)
        self._rows, self.landing = link.collect(
            self._flats, GRADIENT, label, slot, self._sizes(self._to, come)
        )
        link.ledger.floats += self._floats

    def answers(self) -> Answers:
        received = []
        for i in self._workers:
            asked, rows = self._asked[i], self._rows[i]
            found: dict[Key, list[Any]] = {key: [None] * len(rows) for key in asked}
            for source, row in enumerate(rows):
                places = iter(self._layouts[i][source])
                for key, payload, _ in self._comes[i][source]:
                    if isinstance(payload, BatchPayload):  # as bytes
                        start, end, _ = next(places)
                        came = [row if end - start == row.numel() else row[start:end]]
                    else:
                        came = read_parts(row, [next(places) for _ in payload.parts])
                    found[key][source] = payload.like(came)
            if not self._is_gather:
                own = self._link.wire.rank + i
                for key, request in asked.items():
                    found[key][own] = request.payloads[own]
            received.append(found)
        if self._is_gather:
            return {key: Gathered(payloads) for key, payloads in received[0].items()}
        return {key: PerWorker([found[key] for found in received]) for key in received[0]}

    @property
    def _workers(self) -> range:
        """The workers hosted here to whom different things come: one of them, of what is gathered."""
        return range(len(self._asked))

    def _pieces(self, asked: Mapping[Key, Any]) -> list[list[Payload]]:
        """What a worker sends: by destination, or the same for all."""
        if self._is_gather:
            return [[request.payload for request in asked.values()]]
        own = self._link.wire.rank + len(self._flats)
        to = [
            [r.payloads[rank] for r in asked.values()] for rank in range(self._link.wire.world_size)
        ]
        to[own] = []
        return [[payload for payload in piece if payload is not None] for piece in to]

    def _expected_by_source(self, index: int) -> list[list[Comes]]:
        """The same list again and again, where all workers send the same."""
        size = self._link.wire.world_size
        if self._is_gather and all(r.layouts is None for r in self._asked[index].values()):
            return [self._expected(index, 0)] * size
        return [self._expected(index, source) for source in range(size)]

    def _expected(self, index: int, source: int) -> list[Comes]:
        """What comes from a worker, in payloads laid out as these."""
        if not self._is_gather and source == self._link.wire.rank + index:
            return []
        expected = {key: request.expects(source) for key, request in self._asked[index].items()}
        return [(key, payload, None) for key, payload in expected.items() if payload is not None]

    def _packed(self, pieces: Sequence[Sequence[Payload]]) -> Tensor:
        """The pieces one after another: a batch's own buffer, where it is gathered alone."""
        found = [places([kind for p in piece for kind in kinds(p)]) for piece in pieces]
        sizes = [size for _, size in found]
        self._to.append(sizes)
        if self._is_gather and len(pieces[0]) == 1 and isinstance(pieces[0][0], BatchPayload):
            buffer = pieces[0][0].buffer
            if buffer.numel() == sizes[0]:
                return buffer
        flat = self._lockstep.buffer(f"{self._label}{len(self._flats)}", sum(sizes), torch.uint8)
        for part, piece, (layout, _) in zip(flat.split(sizes), pieces, found, strict=True):
            write_parts(part, [p for payload in piece for p in payload.parts], layout)
        return flat

    def _fill_up(self, size: int) -> None:
        """Make the buffers of the workers hosted here as long as the longest of all workers."""
        for i, flat in enumerate(self._flats):
            if flat.numel() < size:
                label = f"filled {self._label}{i}"
                self._flats[i] = self._lockstep.buffer(label, size, torch.uint8)
                self._flats[i][: flat.numel()] = flat

    def _sizes(self, to: list[list[int]], come: list[list[int]]) -> list[Sizes] | None:
        """Bytes by worker hosted here, and destination or source; None of what goes to all."""
        return None if self._is_gather else list(map(Sizes, to, come))

    def _with_lengths(self, label: str) -> list[list[list[Comes]]]:
        """What comes, and the lengths of its parts, which workers tell each other."""
        counts = []
        for by_source in self._comes:
            by_list = {id(one): [len(lengths_of(p)) for _, p, _ in one] for one in by_source}
            counts.append([by_list[id(one)] for one in by_source])
        sizes = self._sizes(
            [[_I64_BYTES * len(piece) for piece in own] for own in self._lengths],
            [[_I64_BYTES * sum(one) for one in by_source] for by_source in counts],
        )
        flats = [
            torch.tensor([n for piece in own for n in piece], dtype=torch.int64).view(torch.uint8)
            for own in self._lengths
        ]
        rows, landing = self._link.collect(
            [flat.to(self._link.wire.device, non_blocking=True) for flat in flats],
            GRADIENT, label, self._lockstep.slot(f"{self._label} sizes"), sizes,
        )  # fmt: skip
        landing.wait()
        every = [row for i in self._workers for row in rows[i]]
        flat = side_by_side(every)
        flat = torch.cat(every) if flat is None else flat
        numbers = flat.view(torch.int64).cpu().numpy()  # on a GPU the host waits here
        told: list[list[list[Comes]]] = []
        at = 0
        for i in self._workers:
            told.append([])
            pairs = zip(self._comes[i], counts[i], strict=True)
            for _, alike in groupby(pairs, lambda pair: id(pair[0])):
                same = list(alike)
                comes, widths = same[0]
                end = at + len(same) * sum(widths)
                lengths = numbers[at:end].reshape(len(same), sum(widths))
                told[-1] += _announced(comes, lengths, widths)
                at = end
        return told

    def _label_for_check(self) -> str:
        """The names, and with `Gather` rank 0's sizes, which every rank knows."""
        asked = self._asked[0]
        if not self._link.check:
            return ""
        if not self._is_gather:
            return f": {', '.join(_names(asked))}"
        pairs = [pair for key, r in asked.items() for pair in bytes_of(key, r.expects(0))]
        return f": {', '.join(name for name, _ in pairs)}" if self._is_ragged else sized(pairs)


def _announced(comes: list[Comes], lengths: Numbers, widths: list[int]) -> list[list[Comes]]:
    """What comes from each of some sources that send payloads of the same kinds. lengths: i64[sources, sum of
    widths]; ``widths``: how many of them belong to each payload."""
    by_payload: list[list[Comes]] = []
    end = 0
    for (key, payload, _), width in zip(comes, widths, strict=True):
        told, end = lengths[:, end : end + width], end + width
        if is_ragged(payload):
            by_payload.append([(key, one, None) for one in payload.announced(told)])
        else:
            by_payload.append([(key, payload, own) for own in told.tolist()])
    return [[of_each[source] for of_each in by_payload] for source in range(len(lengths))]


def _places_by_source(by_source: Sequence[list[Comes]]) -> list[Any]:
    """`places` of what comes from each worker."""
    found: list[Any] = []
    for source, one in enumerate(by_source):
        if source and one is by_source[source - 1]:
            found.append(found[-1])
        else:
            found.append(places([kind for _, p, n in one for kind in kinds(p, n)]))
    return found


def _made(asked: Mapping[Key, Any]) -> dict[Key, Any]:
    """The requests with payloads that are made (`Later`)."""
    return {key: request.made() for key, request in asked.items()}


def is_ragged(payload: Payload) -> TypeGuard[BatchPayload]:
    """Whether sizes of a payload like this one may differ between workers."""
    return isinstance(payload, BatchPayload) and payload.ragged


def kinds(payload: Payload, lengths: Sequence[int] | None = None) -> list[Kind]:
    """Length and type of every part; of a payload like this one, where ``lengths`` have come."""
    if lengths is None:
        if isinstance(payload, BatchPayload):
            return payload.sent
        return [(part.numel(), part.dtype) for part in payload.parts]
    return [(n, part.dtype) for n, part in zip(lengths, payload.parts, strict=True)]


def lengths_of(payload: Payload) -> list[int]:
    """What travels before a ragged payload: how long each part of each tensor is."""
    return payload.lengths if is_ragged(payload) else [part.numel() for part in payload.parts]


def bytes_of(key: Key, payload: Payload) -> list[tuple[str, int]]:
    """Names and sizes of the tensors in a payload, for the comparison of what ranks ask."""
    if isinstance(payload, BatchPayload) and payload.names != (ALONE,):
        return list(zip(payload.names, payload.layout.tensor_bytes.tolist(), strict=True))
    return [(_name(key), num_bytes(payload))]


class Choice(Collective):
    """`Choose`: energies summed over tensors but the absent ones, averaged over workers, one answer for
    all."""

    def send(self) -> None:
        names, absent = _names(self._asked[0]), self._lockstep.absent()
        share = 1.0 / self._link.wire.world_size
        terms = []
        for asked in self._asked:
            # In float64 to the end: rounded before, simulated and real workers could choose otherwise.
            every = torch.cat([torch.atleast_2d(r.energies) for r in asked.values()]).double()
            for index, name in enumerate(names):
                if name in absent:
                    every[index] = 0
            terms.append(every.sum(0) * share)
        self._sum = functools.reduce(torch.add, terms)
        self.landing = self._link.combine_(SUM, self._sum, GRADIENT, f": {', '.join(names)}")
        self._link.ledger.floats += self._sum.numel()

    def answers(self) -> Answers:
        rung = self._lockstep.choose(self._sum.float().cpu())  # on a GPU the host waits here
        self._link.agree(f"rung {rung} of the policy's choice")
        return dict.fromkeys(self._asked[0], rung)


SERVED_BY: dict[type, type[Collective]] = {
    Choose: Choice, Max: Reduction, Mean: Reduction,
    Gather: Collection, GatherRagged: Collection, AllToAll: Collection,
}  # fmt: skip


def kind(request: Request) -> tuple[int, str]:
    """Requests of one kind share a collective; kinds sort into the order they are served in."""
    detail = ""
    if isinstance(request, Mean | Max):
        tensor = request.tensor
        detail = str((tensor.tensors[0] if isinstance(tensor, Batch) else tensor).dtype)
    elif isinstance(request, AllToAll) and request.ragged:
        detail = "ragged"
    return list(SERVED_BY).index(type(request)), detail


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
