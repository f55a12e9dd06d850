"""A wire moves flat buffers between workers; a link adds the ledger, the clock and the check.

Two wires exist: real processes (`process_group.ProcessGroupWire`) and workers that live in this
process (`simulated.SimulatedWire`). A wire hosts ``local_workers`` of the ``world_size`` workers.
What reaches `sum_` and `max_` is already combined over the workers hosted here, in rank order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed import DistError

from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ledger import NODE, Ledger

Cost = Callable[[str, int], float]
"""Modelled seconds of a collective (named as in the ledger) in which a worker hands over so many bytes."""

FROM_GLOO = re.compile(
    r"\[(enforce fail at )?\S*gloo/\S+:\d+\]|Application timeout caused pair closure"
)
"""How the errors of gloo's transport begin: the place in its source, or what a pair says that was closed."""


class Pending(Protocol):
    """A collective under way, such as torch's own `Work`."""

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> object:
        """Return when its buffers hold the answer (on a GPU: when the stream will wait for it)."""


class Done:
    """A collective that needed no communication."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        return


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

    def sum_(self, flat: Tensor) -> Pending:
        """In-place sum over processes. Any floating dtype."""

    def max_(self, flat: Tensor) -> Pending:
        """In-place maximum over processes."""

    def broadcast_(self, flat: Tensor) -> Pending:
        """Overwrite with rank 0's."""

    def gather(self, flats: Sequence[Tensor], slot: str) -> tuple[list[Tensor], Pending]:
        """u8 buffers of one size from the workers hosted here -> those of all workers, rank order.

        They live until the next gather with the same ``slot``."""

    def all_to_all(
        self, flats: Sequence[Tensor], sizes: Sequence[Sizes], slot: str
    ) -> tuple[list[list[Tensor]], Pending]:
        """u8 buffers of the workers hosted here, each cut by destination -> for each of these
        workers what came for it, by source rank.

        They live until the next call with the same ``slot``."""

    def barrier(self) -> None:
        """Wait for all processes."""


class RanksDisagree(RuntimeError):
    """Ranks were about to issue different collectives. The message names ranks and tensors."""


class CollectiveFailed(RuntimeError):
    """A collective broke off: a peer is gone, late or cut off. ``asked``: which; the cause is torch's."""

    def __init__(self, asked: str, cause: BaseException) -> None:
        super().__init__(f"{asked}: {' '.join(str(cause).split())}")
        self.asked = asked


class Asking:
    """Inside, this process waits for a collective; what breaks off there says which one."""

    __slots__ = ("_asked", "_clock")

    def __init__(self, asked: str, clock: Clock) -> None:
        self._asked = asked
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.waits_for = self._asked

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._clock.waits_for = ""
        elif isinstance(error, Exception) and is_of_a_collective(error):
            raise CollectiveFailed(self._asked, error) from error


def is_of_a_collective(error: BaseException) -> bool:
    """Whether torch or gloo says this of a collective. What else fails inside one, such as an
    allocation, is this rank's own error and keeps its name and its text."""
    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and FROM_GLOO.match(str(error)) is not None


class Landing:
    """A collective under way whose wait is timed as communication. ``asked``: which, in words."""

    __slots__ = ("_asked", "_clock", "_pending")

    def __init__(self, pending: Pending, clock: Clock, asked: str) -> None:
        self._pending = pending
        self._clock = clock
        self._asked = asked

    def is_completed(self) -> bool:
        return self._pending.is_completed()

    def wait(self) -> None:
        with self._clock.span("communicate"), Asking(self._asked, self._clock):
            self._pending.wait()


class Link:
    """A wire whose every byte and millisecond is counted. ``check``: before each collective all
    ranks compare what they are about to ask, so that a disagreement is a sentence and not a hang.
    ``node_size``: workers that one of this wire's workers hands each answer to (two-level worlds);
    ``everybody``: the link between all workers there, who compare. ``cost``: of this wire's collectives
    on a network that is modelled, ``node_cost``: of those inside a node."""

    def __init__(
        self,
        wire: Wire,
        ledger: Ledger,
        clock: Clock,
        *,
        check: bool = False,
        node_size: int = 1,
        everybody: Link | None = None,
        cost: Cost | None = None,
        node_cost: Cost | None = None,
    ) -> None:
        self.wire = wire
        self.ledger = ledger
        self.clock = clock
        self.check = check
        self.node_size = node_size
        self.cost = cost
        self.node_cost = node_cost
        self._everybody = everybody or self

    def sum_(self, flat: Tensor, purpose: str, label: str) -> Landing:
        self._before(f"sum {purpose} {label}", flat)
        self._count(purpose, "allreduce", flat.nbytes, flat.nbytes)
        asked = _in_words("allreduce", purpose, flat.nbytes)
        with self.clock.span("communicate"), Asking(asked, self.clock):
            return Landing(self.wire.sum_(flat), self.clock, asked)

    def max_(self, flat: Tensor, purpose: str, label: str) -> Landing:
        self._before(f"max {purpose} {label}", flat)
        self._count(purpose, "allreduce", flat.nbytes, flat.nbytes)
        asked = _in_words("allreduce", purpose, flat.nbytes)
        with self.clock.span("communicate"), Asking(asked, self.clock):
            return Landing(self.wire.max_(flat), self.clock, asked)

    def broadcast_(self, flat: Tensor, purpose: str, label: str) -> Landing:
        self._before(f"broadcast {purpose} {label}", flat)
        self._count(purpose, "broadcast", flat.nbytes, flat.nbytes)
        asked = _in_words("broadcast", purpose, flat.nbytes)
        with self.clock.span("communicate"), Asking(asked, self.clock):
            return Landing(self.wire.broadcast_(flat), self.clock, asked)

    def gather(
        self, flats: Sequence[Tensor], purpose: str, label: str, slot: str
    ) -> tuple[list[Tensor], Landing]:
        self._before(f"gather {purpose} {label}", flats[0])
        everything = flats[0].nbytes * self.wire.world_size
        self._count(purpose, "allgather", flats[0].nbytes, everything)
        asked = _in_words("allgather", purpose, flats[0].nbytes)
        with self.clock.span("communicate"), Asking(asked, self.clock):
            rows, pending = self.wire.gather(flats, slot)
            return rows, Landing(pending, self.clock, asked)

    def all_to_all(
        self, flats: Sequence[Tensor], sizes: Sequence[Sizes], purpose: str, label: str, slot: str
    ) -> tuple[list[list[Tensor]], Landing]:
        if self.check:  # without the buffer's size: it may differ between ranks
            self._compare(f"alltoall {purpose}{label}")
            self._compare_pairs(sizes[0], label)
        self._count(purpose, "alltoall", sum(sizes[0].to), sum(sizes[0].come))
        asked = f"alltoall of {purpose}"  # without its size: it may differ between ranks
        with self.clock.span("communicate"), Asking(asked, self.clock):
            rows, pending = self.wire.all_to_all(flats, sizes, slot)
            return rows, Landing(pending, self.clock, asked)

    def wait(self) -> None:
        """A barrier that is timed as waiting."""
        with self.clock.span("wait"):
            self.barrier("before the signals")

    def barrier(self, when: str) -> None:
        """Wait for all processes. Not counted."""
        with Asking(f"barrier {when}", self.clock):
            self.wire.barrier()

    def _count(self, purpose: str, collective: str, payload_bytes: int, answer_bytes: int) -> None:
        seconds = self.cost(collective, payload_bytes) if self.cost else None
        self.ledger.add(purpose, collective, payload_bytes, self.wire.world_size, seconds)
        if self.node_size > 1:  # the answer is handed on
            seconds = self.node_cost("broadcast", answer_bytes) if self.node_cost else None
            self.ledger.add(NODE, "broadcast", answer_bytes, self.node_size, seconds)

    def agree(self, text: str) -> None:
        """Compare what ranks have decided, where they compare what they ask. Raises RanksDisagree."""
        if self.check:
            self._compare(text)

    def _before(self, label: str, flat: Tensor) -> None:
        if self.check:
            kind, colon, tensors = label.partition(": ")
            size = f"{flat.dtype} x {flat.numel()}".replace("torch.", "")
            self._compare(f"{kind.strip()} {size}{colon}{tensors}")

    def _compare(self, text: str) -> None:
        said = self._everybody.tell_all(text, purpose="check")
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
        wire = self.wire
        spoken = torch.tensor(list(text.encode()), dtype=torch.uint8, device=wire.device)
        length = torch.tensor([spoken.numel()], dtype=torch.int64, device=wire.device).view(
            torch.uint8
        )
        here = wire.local_workers
        asked = f"allgather of {purpose or 'checkpoint'} texts"
        with Asking(asked, self.clock):
            rows, pending = wire.gather([length] * here, "lengths")
            pending.wait()
        lengths = [int(row.view(torch.int64)) for row in rows]
        filled = spoken.new_zeros(max(1, *lengths))
        filled[: spoken.numel()] = spoken
        with Asking(asked, self.clock):
            rows, pending = wire.gather([filled] * here, "texts")
            pending.wait()
        for sent in (length, filled):
            if purpose is not None:
                seconds = self.cost("allgather", sent.nbytes) if self.cost else None
                self.ledger.add(purpose, "allgather", sent.nbytes, wire.world_size, seconds)
        return [bytes(row[:n].tolist()).decode() for row, n in zip(rows, lengths, strict=True)]


def _in_words(collective: str, purpose: str, num_bytes: int) -> str:
    """A collective for whoever waits in vain. The same on all ranks, as the collective is."""
    return f"{collective} of {purpose} ({num_bytes} bytes)"


def _difference(text: str, other: str) -> str:
    """The tensors (with sizes) only ``text`` names, or all of it where there are none."""
    kind, _, names = text.partition(": ")
    theirs = other.partition(": ")[2].split(", ")
    own = [name for name in names.split(", ") if name and name not in theirs]
    return f"{kind}: {', '.join(own)}" if own else text
