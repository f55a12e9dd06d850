"""A wire moves flat buffers between workers; a link adds the ledger, the clock and the check.

Two wires exist: real processes (`process_group.ProcessGroupWire`) and workers that live in this
process (`simulated.SimulatedWire`). A wire hosts ``local_workers`` of the ``world_size`` workers.
What reaches `Wire.combine_` is already combined over the workers hosted here, in rank order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed import DistError

from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ledger import Ledger

Cost = Callable[[str, int], float]
"""Modelled seconds of a collective (named as in the ledger) in which a worker hands over so many bytes."""

TOLD_BYTES = 1 << 24
"""How much of what ranks tell each other travels at once."""

FROM_GLOO = re.compile(
    r"\[(enforce fail at )?\S*gloo/\S+:\d+\]|Application timeout caused pair closure"
)
"""How the errors of gloo's transport begin: the place in its source, or what a pair says that was closed."""

SUM, MAX, BROADCAST = "sum", "max", "broadcast"


class Pending:
    """A collective under way. ``works``: its pieces, such as torch's `Work`; none where nothing had to be
    sent. ``within``: the context in which it is waited for."""

    def __init__(self, *works: Any) -> None:
        self._works = works
        self.within: Callable[[], AbstractContextManager[None]] = nullcontext

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        """Return when its buffers hold the answer (on a GPU: when the stream will wait for it)."""
        with self.within():
            for work in self._works:
                work.wait()


class Sizes(NamedTuple):
    """Bytes of an all-to-all as one worker knows them: to each rank and from each rank."""

    to: list[int]
    come: list[int]


class Wire(Protocol):
    """Collectives over flat contiguous tensors. All ranks call them in one order from one thread;
    each returns at once, and its buffers belong to it until its `wait` has returned."""

    world_size: int
    rank: int  # of the first worker hosted here
    local_workers: int
    device: torch.device

    def combine_(self, how: str, flat: Tensor) -> Pending:
        """Overwrite with the `SUM` or the `MAX` over processes (any floating dtype), or with rank 0's
        (`BROADCAST`)."""

    def collect(
        self, flats: Sequence[Tensor], slot: str, sizes: Sequence[Sizes] | None = None
    ) -> tuple[list[list[Tensor]], Pending]:
        """u8 buffers of the workers hosted here -> for each of these workers what came for it, by source
        rank. Without ``sizes`` all buffers are of one size, and everybody gets all of them; with
        ``sizes`` each is cut by destination.

        What came lives until the next call with the same ``slot``."""

    def barrier(self) -> None:
        """Wait for all processes."""


def arriving(world_size: int, own: Tensor, sizes: Sequence[Sizes] | None) -> list[int]:
    """Bytes that come from each rank for the only worker hosted here."""
    return [own.numel()] * world_size if sizes is None else sizes[0].come


class RanksDisagree(RuntimeError):
    """Ranks were about to issue different collectives. The message names ranks and tensors."""


class CollectiveFailed(RuntimeError):
    """A collective broke off: a peer is gone, late or cut off. ``asked``: which; the cause is torch's."""

    def __init__(self, asked: str, cause: BaseException) -> None:
        super().__init__(f"{asked}: {' '.join(str(cause).split())}")
        self.asked = asked


@contextmanager
def asking(asked: str, clock: Clock, *, is_timed: bool = False) -> Iterator[None]:
    """Inside, this process begins or waits for a collective; what breaks off there says which one.
    ``is_timed``: as communication."""
    clock.waits_for = asked
    try:
        with clock.span("communicate") if is_timed else nullcontext():
            yield
    except Exception as error:
        if is_of_a_collective(error):
            raise CollectiveFailed(asked, error) from error
        raise
    clock.waits_for = ""


def is_of_a_collective(error: BaseException) -> bool:
    """Whether torch or gloo says this of a collective. What else fails inside one, such as an
    allocation, is this rank's own error and keeps its name and its text."""
    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and FROM_GLOO.match(str(error)) is not None


class Link:
    """A wire whose every byte and millisecond is counted. ``check``: before each collective all
    ranks compare what they are about to ask, so that a disagreement is a sentence and not a hang.
    ``cost``: of collectives on a network that is modelled."""

    def __init__(
        self,
        wire: Wire,
        ledger: Ledger,
        clock: Clock,
        *,
        check: bool = False,
        cost: Cost | None = None,
    ) -> None:
        self.wire = wire
        self.ledger = ledger
        self.clock = clock
        self.check = check
        self.cost = cost

    def combine_(self, how: str, flat: Tensor, purpose: str, label: str = "") -> Pending:
        """`Wire.combine_`. ``label``: for the comparison of what ranks ask, such as ": tensor"."""
        if self.check:
            self._compare(f"{how} {purpose}", label, flat)
        collective = BROADCAST if how == BROADCAST else "allreduce"
        self._count(purpose, collective, flat.nbytes)
        asked = f"{collective} of {purpose} ({flat.nbytes} bytes)"
        within = partial(asking, asked, self.clock, is_timed=True)
        with within():
            pending = self.wire.combine_(how, flat)
        pending.within = within
        return pending

    def collect(
        self,
        flats: Sequence[Tensor],
        purpose: str,
        label: str,
        slot: str,
        sizes: Sequence[Sizes] | None = None,
    ) -> tuple[list[list[Tensor]], Pending]:
        """`Wire.collect`, an allgather or an all-to-all. ``label``: as of `combine_`."""
        payload = flats[0].nbytes
        if sizes is None:
            if self.check:
                self._compare(f"gather {purpose}", label, flats[0])
            self._count(purpose, "allgather", payload)
            asked = f"allgather of {purpose} ({payload} bytes)"
        else:  # without the buffer's size: it may differ between ranks
            if self.check:
                self._compare(f"alltoall {purpose}", label)
                self._compare_pairs(sizes[0], label)
            self._count(purpose, "alltoall", sum(sizes[0].to))
            asked = f"alltoall of {purpose}"
        within = partial(asking, asked, self.clock, is_timed=True)
        with within():
            rows, pending = self.wire.collect(flats, slot, sizes)
        pending.within = within
        return rows, pending

    def wait(self) -> None:
        """A barrier that is timed as waiting."""
        with self.clock.span("wait"):
            self.barrier("before the signals")

    def barrier(self, when: str) -> None:
        """Wait for all processes. Not counted."""
        with asking(f"barrier {when}", self.clock):
            self.wire.barrier()

    def _count(self, purpose: str, collective: str, payload_bytes: int) -> None:
        seconds = self.cost(collective, payload_bytes) if self.cost else None
        self.ledger.add(purpose, collective, payload_bytes, self.wire.world_size, seconds)

    def agree(self, text: str) -> None:
        """Compare what ranks have decided, where they compare what they ask. Raises RanksDisagree."""
        if self.check:
            self._compare(text)

    def _compare(self, text: str, label: str = "", flat: Tensor | None = None) -> None:
        """Raise RanksDisagree where ranks ask for different things. ``flat``: of the same size on all."""
        kind, colon, tensors = label.partition(": ")
        size = "" if flat is None else f" {flat.dtype} x {flat.numel()}".replace("torch.", "")
        text = f"{text}{kind}{size}{colon}{tensors}"
        said = self.tell_all(text, purpose="check")
        for rank, other in enumerate(said):
            if other != said[0]:
                raise RanksDisagree(
                    f"rank {rank} is about to ask for: {_difference(other, said[0])}; "
                    f"rank 0 for: {_difference(said[0], other)}"
                )

    def _compare_pairs(self, sizes: Sizes, label: str) -> None:
        """What one rank sends is what the other waits for. (Simulated workers are compared by their
        wire: here they speak with one voice.)"""
        if self.wire.local_workers > 1:
            return
        said = self.tell_all(f"{sizes.to};{sizes.come}", purpose="check")
        told = [[json.loads(part) for part in text.split(";")] for text in said]
        for source, (to, _) in enumerate(told):
            for rank, (_, come) in enumerate(told):
                if to[rank] != come[source]:
                    raise RanksDisagree(
                        f"rank {rank} waits for {come[source]} bytes from rank {source}, which sends it "
                        f"{to[rank]}{label}"
                    )

    def tell_all(self, text: str, purpose: str | None = "signal") -> list[str]:
        """Every rank's text, in rank order (lengths travel first: they may differ). Workers hosted
        here speak with one voice. Not counted where ``purpose`` is None."""
        return [told.decode() for told in self.tell_bytes(text.encode(), purpose)]

    def tell_bytes(self, data: bytes, purpose: str | None) -> list[bytes]:
        """Every rank's bytes, as `tell_all`. They travel in pieces, so that a device need not hold all."""
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.wire.device)
        rows = self._gathered(length.view(torch.uint8), "lengths", purpose)
        lengths = [int(row.view(torch.int64)) for row in rows]
        filled = bytearray(data).ljust(max(1, *lengths), b"\0")
        told = [bytearray() for _ in lengths]
        for piece in torch.frombuffer(filled, dtype=torch.uint8).split(TOLD_BYTES):
            rows = self._gathered(piece.to(self.wire.device), "texts", purpose)
            for one, row in zip(told, rows, strict=True):
                one += row.cpu().numpy().tobytes()
        return [bytes(one[:n]) for one, n in zip(told, lengths, strict=True)]

    def _gathered(self, flat: Tensor, slot: str, purpose: str | None) -> list[Tensor]:
        with asking(f"allgather of {purpose or 'checkpoint'} texts", self.clock):
            rows, pending = self.wire.collect([flat] * self.wire.local_workers, slot)
            pending.wait()
        if purpose is not None:
            self._count(purpose, "allgather", flat.nbytes)
        return rows[0]


def _difference(text: str, other: str) -> str:
    """The tensors (with sizes) only ``text`` names, or all of it where there are none."""
    kind, _, names = text.partition(": ")
    theirs = other.partition(": ")[2].split(", ")
    own = [name for name in names.split(", ") if name and name not in theirs]
    return f"{kind}: {', '.join(own)}" if own else text
