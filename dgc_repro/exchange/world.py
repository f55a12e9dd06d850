"""The workers of a training, and the collectives between them: every byte is counted, every wait is timed.

``local`` of the ``size`` workers live in this process: one, beside the other processes of a process group, or
all of them (simulated). A collective takes what each worker hosted here hands over. What asks for one gets a
`Wait`: the collective begins with the first wait of its round, together with all others of its kind that were
asked for by then, as one. So a method that asks for much costs one collective of each kind a round, and the
ledger counts one. (A reduction above `LARGE_BYTES` travels by itself all the same.)

gloo lacks some types, and an unsupported one can hang a job for minutes: what is gathered, swapped or
broadcast moves as bytes whatever is inside. Collectives are begun in one order from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.collective import Cost, asking
from dgc_repro.exchange.ledger import GRADIENT, Ledger
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch, Stretches, starts
from dgc_repro.kernel.transfer import fetched
from dgc_repro.kernel.workspace import Workspace

SUM, MAX, TOTAL, BROADCAST = "sum", "max", "total", "broadcast"
TOLD_BYTES = 1 << 24
"""How much of what ranks tell each other travels at once."""
PIECE_BYTES = 1 << 20
"""A larger gather on gloo goes in pieces. gloo announces that it is ready to receive on the same connection
on which it sends: behind a message that is on its way already, so that with the whole payload in two
messages the rank that comes second sends first, and the other waits for half of it (5.7 MB at 100 Mbit/s, 2
workers: 720 ms, in pieces 490, the link's own 474)."""
LARGE_BYTES = 1 << 22
"""A larger reduction is a collective of its own, where it lies: joining it with others costs a copy in and
out, and saves nothing that counts."""


class Wait:
    """A collective that was asked for. Call it to wait for the answer. ``rows``: then, what was gathered, by
    rank; what was swapped, by worker hosted here and by rank."""

    def __init__(self, world: World, asked: str) -> None:
        self.rows: list[Any] = []
        self._world, self._asked = world, asked
        self._begun = False
        self._works: Sequence[Any] = ()
        self._then: Callable[[], object] | None = None

    def begin(self, *works: Any, then: Callable[[], object] | None = None) -> Wait:
        """The collective is under way. ``works``: its pieces, torch's `Work`; ``then``: what follows it."""
        self._begun, self._works, self._then = True, works, then
        return self

    def __call__(self) -> None:
        if not self._begun:
            self._world.begin()
        with asking(self._asked, self._world.clock, is_timed=True):
            for work in self._works:
                work.wait()
        if self._then is not None:
            self._then()


@dataclass
class _Reduction:
    """What the workers hosted here hand over of ``size`` values. ``flat``: combined in the first one's, and
    the answer ends there; or ``fill``: writes it into a piece of what travels, which ``buffer`` makes of so
    many values. ``then``: what follows the collective, from the piece."""

    wait: Wait
    size: int
    flat: Tensor | None = None
    fill: Callable[[Tensor], object] | None = None
    buffer: Callable[[int], Tensor] | None = None
    then: Callable[[Tensor], object] | None = None


@dataclass
class _Gather:
    """The buffers of the workers hosted here. ``slot``: where what comes will lie."""

    wait: Wait
    rows: Sequence[Tensor]
    slot: Hashable


class World:
    """``size`` workers, of which ``local``, from ``rank`` on, live here.

    ``cost``: modelled seconds of a collective, on a network that the run names."""

    def __init__(
        self,
        simulated: int | None = None,
        *,
        size: int | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        ledger: Ledger | None = None,
        clock: Clock | None = None,
        cost: Cost | None = None,
    ) -> None:
        """``simulated``: so many workers in this process; None for one, beside the others of a process
        ``group`` (default: all). ``size``: of a world in which each simulated worker stands for several that
        send what it sends."""
        if simulated is not None and simulated < 1:
            raise ValueError(f"workers: a whole number from 1, got {simulated}")
        self.device = device or torch.device("cpu")
        self.simulated, self.group = simulated is not None, group
        self.local = 1 if simulated is None else simulated
        self.size = dist.get_world_size(group) if simulated is None else size or simulated
        self._stands_for = self.size // self.local if self.simulated else 1
        self.rank = dist.get_rank(group) if simulated is None else 0
        self.ledger, self.clock, self.cost = ledger or Ledger(), clock or Clock(self.device), cost
        self._buffers = Workspace()
        self._reductions: dict[tuple[str, torch.dtype], list[_Reduction]] = {}
        self._gathers: list[_Gather] = []
        on_cpu = self.device.type == "cpu"
        self._in_pieces = not self.simulated and on_cpu and dist.get_backend(group) == "gloo"

    # What methods ask for.

    def mean(self, flats: Sequence[Tensor], to: Tensor) -> Wait:
        """The mean over all workers of flat tensors of any float type, which are read until then. It ends in
        ``to``, which may be ``flats[0]``. Each is scaled before the sum, as DDP does."""
        share, total = self._stands_for / self.size, to
        torch.mul(flats[0], share, out=total)
        for other in flats[1:]:
            total += other * share  # as real processes: the product is rounded before it is added
        return self._reduce(SUM, total.dtype, total.numel(), total)

    def average(
        self, xs: Sequence[Batch], out: Batch, buffer: Callable[[int, Tensor], Tensor]
    ) -> Wait:
        """The mean of tensors of one float type, which ends in ``out``. Tensors that lie side by side, as in
        DDP's buckets, and are given up (``xs[0]`` is ``out``), are averaged where they are. ``buffer``:
        makes a flat one of so many values, like a tensor, for others."""
        share, x, first = self._stands_for / self.size, xs[0], out.tensors[0]
        size = sum(out.sizes)
        if self.simulated:
            kernels.scale(x, share, out)
            for other in xs[1:]:
                kernels.add_scaled(other, share, out)
            return self._reduce(SUM, first.dtype, size)
        flat = side_by_side(out.tensors) if x.tensors is out.tensors else None
        if flat is not None:
            if x.on_gpu:
                kernels.scale(x, share, x)
            else:
                flat.mul_(share)
            return self._reduce(SUM, flat.dtype, size, flat)
        return self._reduce(
            SUM,
            first.dtype,
            size,
            fill=lambda piece: kernels.scale(x, share, _cut(out, piece)),
            buffer=lambda total: buffer(total, first),
            then=lambda piece: kernels.scale(_cut(out, piece), 1.0, out),
        )

    def total(self, flats: Sequence[Tensor]) -> Wait:
        """The sum over all workers. It ends in ``flats[0]``."""
        for other in flats[1:]:
            flats[0].add_(other)
        if self._stands_for > 1:
            flats[0].mul_(self._stands_for)
        return self._reduce(TOTAL, flats[0].dtype, flats[0].numel(), flats[0])

    def largest(self, flats: Sequence[Tensor]) -> Wait:
        """The element-wise maximum over all workers. It ends in ``flats[0]``."""
        for other in flats[1:]:
            torch.maximum(flats[0], other, out=flats[0])
        return self._reduce(MAX, flats[0].dtype, flats[0].numel(), flats[0])

    def gather(self, rows: Sequence[Tensor], slot: Hashable, floats: float = 0.0) -> Wait:
        """Everybody's bytes, for all. ``rows``: u8, of one size on all workers. ``slot``: names where they
        lie, until it is asked for again. ``floats``: of the first worker, in the papers' unit."""
        self.ledger.floats += floats
        wait = Wait(self, f"allgather of {GRADIENT} ({rows[0].numel()} bytes)")
        self._gathers.append(_Gather(wait, rows, slot))
        return wait

    def swap(
        self,
        rows: Sequence[Tensor],
        to: Sequence[Sequence[int]],
        come: Sequence[Sequence[int]],
        slot: Hashable,
        floats: float = 0.0,
    ) -> Wait:
        """What every worker has for each other one; it begins at once. ``rows``: u8, cut by destination.
        ``to``, ``come``: bytes, by worker hosted here and by rank."""
        self.ledger.floats += floats
        self._count(GRADIENT, "alltoall", sum(to[0]))
        wait = Wait(self, f"alltoall of {GRADIENT}")
        if self.simulated:
            assert self._stands_for == 1, "what comes from others is not what this worker sends"
            cut = [row.split(list(sizes)) for row, sizes in zip(rows, to, strict=True)]
            wait.rows = [[row[worker] for row in cut] for worker in range(self.local)]
            return wait.begin()
        flat = self._buffers.scratch(("swap", slot), sum(come[0]), torch.uint8, self.device)
        with asking(wait._asked, self.clock, is_timed=True):
            work = dist.all_to_all_single(
                flat, rows[0], list(come[0]), list(to[0]), group=self.group, async_op=True
            )
        wait.rows = [list(flat.split(list(come[0])))]
        return wait.begin(work)

    def begin(self) -> None:
        """Begin what has been asked for since the last round: one collective for all of a kind."""
        reductions, self._reductions = self._reductions, {}
        gathers, self._gathers = self._gathers, []
        for (how, dtype), same in reductions.items():
            self._begin_reductions(how, dtype, same)
        if gathers:
            self._begin_gathers(gathers)

    def forget(self) -> None:
        """Drop what has been asked for since the last round."""
        self._reductions, self._gathers = {}, []

    # What the exchange and the trainer ask for.

    def share(
        self, numbers: Sequence[float] | Tensor, purpose: str | None = "signal"
    ) -> list[float]:
        """The sums over processes of float64 numbers, not counted where ``purpose`` is None. On a GPU the
        process waits for the device, once."""
        return self.sharing(numbers, purpose)()

    def sharing(
        self, numbers: Sequence[float] | Tensor, purpose: str | None = "signal"
    ) -> Callable[[], list[float]]:
        """Begin `share`. What is returned waits for the sums, and not for what was begun in between."""
        flat = torch.as_tensor(numbers, dtype=torch.float64).to(self.device, non_blocking=True)
        self.reduce_(SUM, flat, purpose)
        get = fetched(flat)
        return lambda: list(get().tolist())

    def reduce_(self, how: str, flat: Tensor, purpose: str | None) -> None:
        """Overwrite with the `SUM` or `MAX` over processes, or with rank 0's (`BROADCAST`)."""
        collective = BROADCAST if how == BROADCAST else "allreduce"
        if purpose is not None:
            self._count(purpose, collective, flat.nbytes)
        if self.simulated:
            return
        with asking(f"{collective} of {purpose} ({flat.nbytes} bytes)", self.clock, is_timed=True):
            if how == BROADCAST:
                group = self.group or dist.group.WORLD
                dist.broadcast(flat.view(torch.uint8), group_src=0, group=group)
            else:
                dist.all_reduce(flat, _operation(how), group=self.group)

    def tell(self, text: str, purpose: str | None = "signal") -> list[str]:
        """Every rank's text, in rank order (lengths travel first: they may differ). Workers hosted here speak
        with one voice. Not counted where ``purpose`` is None."""
        return [told.decode() for told in self.tell_bytes(text.encode(), purpose)]

    def tell_bytes(self, data: bytes, purpose: str | None) -> list[bytes]:
        """Every rank's bytes, as `tell`. They travel in pieces, so that a device need not hold all."""
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        rows = self._told(length.view(torch.uint8), purpose)
        lengths = [int(row.view(torch.int64)) for row in rows]
        filled = bytearray(data).ljust(max(1, *lengths), b"\0")
        told = [bytearray() for _ in lengths]
        for piece in torch.frombuffer(filled, dtype=torch.uint8).split(TOLD_BYTES):
            for one, row in zip(told, self._told(piece.to(self.device), purpose), strict=True):
                one += row.cpu().numpy().tobytes()
        return [bytes(one[:n]) for one, n in zip(told, lengths, strict=True)]

    def barrier(self, when: str) -> None:
        """Wait for all processes. Not counted."""
        if not self.simulated:
            with asking(f"barrier {when}", self.clock):
                dist.barrier(group=self.group)

    def wait(self) -> None:
        """A barrier that is timed as waiting."""
        with self.clock.span("wait"):
            self.barrier("before the signals")

    # How collectives begin.

    def _reduce(
        self,
        how: str,
        dtype: torch.dtype,
        size: int,
        flat: Tensor | None = None,
        **ways: Any,
    ) -> Wait:
        """Arguments are those of `_Reduction`; of simulated workers there is nothing to hand over."""
        wait = Wait(self, f"allreduce of {GRADIENT} ({size * dtype.itemsize} bytes)")
        asked = _Reduction(wait, size, flat, **ways)
        self._reductions.setdefault((how, dtype), []).append(asked)
        return wait

    def _begin_reductions(self, how: str, dtype: torch.dtype, same: Sequence[_Reduction]) -> None:
        size = sum(one.size for one in same) * dtype.itemsize
        self._count(GRADIENT, "allreduce", size)
        # The papers count values; a total is of a few numbers beside them.
        self.ledger.floats += sum(one.size for one in same) if how == TOTAL else size / 4
        if self.simulated:
            for one in same:
                one.wait.begin()
            return
        # By size, which is the same on all ranks: where tensors lie is not.
        small = [one for one in same if one.size * dtype.itemsize <= LARGE_BYTES]
        large = [[one] for one in same if one.size * dtype.itemsize > LARGE_BYTES]
        for joined in [*large, small] if small else large:
            self._begin_joined(how, dtype, joined)

    def _begin_joined(self, how: str, dtype: torch.dtype, same: Sequence[_Reduction]) -> None:
        """One collective for all of these."""
        total = sum(one.size for one in same)
        buffer = next((one.buffer for one in same if one.buffer is not None), None)
        if buffer is None and len(same) == 1:
            assert same[0].flat is not None
            joined = same[0].flat
        else:
            joined = (
                torch.empty(total, dtype=dtype, device=self.device)
                if buffer is None
                else buffer(total)
            )
            for one, piece in zip(same, joined.split([o.size for o in same]), strict=True):
                if one.fill is not None:
                    one.fill(piece)
                elif one.flat is not None:
                    piece.copy_(one.flat)
        asked = f"allreduce of {GRADIENT} ({total * dtype.itemsize} bytes)"
        with asking(asked, self.clock, is_timed=True):
            work = dist.all_reduce(joined, _operation(how), group=self.group, async_op=True)
        for one, piece in zip(same, joined.split([one.size for one in same]), strict=True):
            then = one.then
            if one.flat is not None and joined is not one.flat:
                then = one.flat.copy_
            one.wait.begin(work, then=None if then is None else partial(then, piece))

    def _begin_gathers(self, asked: Sequence[_Gather]) -> None:
        sizes = [one.rows[0].numel() for one in asked]
        self._count(GRADIENT, "allgather", sum(sizes))
        if self.simulated:
            for one in asked:
                one.wait.rows = list(one.rows) * self._stands_for
                one.wait.begin()
            return
        row = asked[0].rows[0] if len(asked) == 1 else torch.cat([one.rows[0] for one in asked])
        slot = tuple([one.slot for one in asked])
        with asking(f"allgather of {GRADIENT} ({sum(sizes)} bytes)", self.clock, is_timed=True):
            got, works = self._gathered(row, slot)
        cut = [one.split(sizes) for one in got]
        for place, one in enumerate(asked):
            one.wait.rows = [pieces[place] for pieces in cut]
            one.wait.begin(*works)

    def _gathered(self, row: Tensor, slot: Hashable) -> tuple[list[Tensor], list[Any]]:
        """What will come from each rank, and the pieces of the collective."""
        n, how = row.numel(), {"group": self.group, "async_op": True}
        flat = self._buffers.scratch(("gather", slot), self.size * n, torch.uint8, self.device)
        # Slices, not rows of a matrix: the rows of an empty matrix begin at odd, unaligned places.
        got = list(flat.split([n] * self.size))
        if self._in_pieces and n > PIECE_BYTES and self.size > 1:
            # As many collectives as there are pieces, the same on all ranks: payloads are of one size.
            cuts = [slice(begin, begin + PIECE_BYTES) for begin in range(0, n, PIECE_BYTES)]
            each = [dist.all_gather([one[cut] for one in got], row[cut], **how) for cut in cuts]  # type: ignore[arg-type]
            return got, each
        return got, [dist.all_gather_into_tensor(flat, row, **how)]  # type: ignore[arg-type]

    def _told(self, flat: Tensor, purpose: str | None) -> list[Tensor]:
        """What every rank tells, counted where it has a ``purpose``."""
        if purpose is not None:
            self._count(purpose, "allgather", flat.nbytes)
        if self.simulated:
            return [flat] * self.size
        with asking(f"allgather of {purpose or 'checkpoint'} texts", self.clock):
            got, works = self._gathered(flat, "told")
            for work in works:
                work.wait()
        return got

    def _count(self, purpose: str, collective: str, payload_bytes: int) -> None:
        seconds = self.cost(collective, payload_bytes) if self.cost else None
        self.ledger.add(purpose, collective, payload_bytes, self.size, seconds)


def _cut(of: Batch, flat: Tensor) -> Batch:
    """A flat tensor as tensors with the sizes of a batch."""
    return Stretches(of, flat, np.array(starts(of.sizes), dtype=np.int64), of.sizes)


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


def _operation(how: str) -> Any:
    """torch's name of a reduction."""
    return dist.ReduceOp.MAX if how == MAX else dist.ReduceOp.SUM
