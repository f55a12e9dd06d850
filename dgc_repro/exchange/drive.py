"""The lockstep driver: advances the exchanges of all workers together, one collective a kind a round.

``open`` runs one worker's exchange up to its first requests (compressing, states untouched);
``send`` begins the collectives of a round, ``receive`` waits for them and resumes the exchanges;
``finish`` goes on so until every exchange has returned. Simulated workers are opened one after
another, so that at most two gradients exist at a time (the first worker's is where the means are
written); a real process opens its one worker. ``close``
gives up before the end: exchanges leave no trace (the purity law).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dgc_repro.exchange.packing import SERVED_BY, Answers, Collective, Key, PerWorker
from dgc_repro.exchange.packing import kind as kind_of
from dgc_repro.exchange.wire import Link, RanksDisagree
from dgc_repro.kernel.batch import Batch, Unchecked
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload.requests import Exchange, Many, Outcome, Request

Chooser = Callable[[Tensor], int]
Kind = tuple[int, str]


class Lockstep:
    """One step's exchanges of all workers hosted here. ``part``: those under way at the same time (buckets)
    differ in it, and so do their buffers. ``absent``: tensors whose energies do not count, known when
    the requests are sent (exchange/settle.py)."""

    def __init__(
        self,
        link: Link,
        buffers: Workspace,
        choose: Chooser | None = None,
        *,
        part: int = 0,
        absent: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.link = link
        self.choose = choose or _no_chooser
        self.absent = absent
        self._buffers = buffers
        self._part = part
        self._round = 0
        self._live: dict[int, Exchange] = {}
        self._asked: dict[int, Request | Many] = {}
        self._kinds: dict[Key, Kind] = {}  # of what the first worker asks in this round
        self._collectives: dict[Kind, Collective] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._sent = False

    def open(self, exchange: Exchange) -> None:
        """Start one worker's exchange."""
        worker = len(self._live) + len(self._outcomes)
        self._live[worker] = exchange
        with self.link.clock.span("compress"):
            self._advance(worker, None)

    def send(self) -> None:
        """Begin the collectives of this round; nothing where they are under way, or none is left."""
        if not self._sent:
            for kind in sorted(self._collectives):
                self._collectives[kind].send()
            self._sent = True

    def receive(self) -> None:
        """Wait for the collectives that were sent, and run the exchanges to their next request."""
        if not self._sent or not self._collectives:
            return
        self._wait()
        answers: Answers = {}
        for kind in sorted(self._collectives):
            answers.update(self._collectives[kind].answers())
        self._collectives, self._sent = {}, False
        self._round += 1
        with self.link.clock.span("decompress") as span:
            for worker in list(self._live):
                self._advance(worker, answers)
            if self._collectives:
                span.name = "compress"

    @property
    def landed(self) -> bool:
        """Whether `receive` need not wait."""
        return self._sent and all(
            one.landing and one.landing.is_completed() for one in self._collectives.values()
        )

    def unread(self) -> list[Any]:
        """What the host must read from a GPU before it can `send` (`Later.unread`)."""
        return [one for collective in self._collectives.values() for one in collective.unread()]

    def finish(self) -> list[Outcome]:
        """Rounds until all exchanges have returned; their outcomes by worker."""
        while self._collectives:
            self.send()
            self.receive()
        return [self._outcomes[worker] for worker in sorted(self._outcomes)]

    def close(self) -> None:
        """Drop all exchanges that have not returned, when nothing of them is under way any more."""
        self._wait()
        for exchange in self._live.values():
            exchange.close()
        self._live = {}

    def slot(self, label: str) -> str:
        """Names what is received in this round of this part."""
        return f"{label} {self._part} {self._round}"

    def buffer(self, label: str, size: int, dtype: torch.dtype) -> Tensor:
        """A reused 1-d buffer for what is sent in this round of this part; content undefined."""
        key = (self.slot(label), str(dtype))
        return self._buffers.scratch(key, size, dtype, self.link.wire.device)

    def shaped(self, label: str, flat: Tensor, batches: Sequence[Batch]) -> list[Batch]:
        """Views of a `buffer` of this label, shaped as the tensors of these batches. They are kept with it:
        a view costs more than most other things that the host does for a tensor."""
        shapes = [(batch.names, [tensor.shape for tensor in batch.tensors]) for batch in batches]
        key = self.slot(label), str(flat.dtype)
        kept = self._buffers.shaped.get(key)
        if kept is None or kept[0] is not flat or kept[1] != shapes:
            views = iter(flat.split([size for batch in batches for size in batch.sizes]))
            sums = [
                Batch(batch.names, [next(views).view(x.shape) for x in batch.tensors], Unchecked())
                for batch in batches
            ]
            kept = self._buffers.shaped[key] = flat, shapes, sums
        return kept[2]

    def _wait(self) -> None:
        for kind in sorted(self._collectives):
            if landing := self._collectives[kind].landing:
                landing.wait()

    def _advance(self, worker: int, answers: Answers | None) -> None:
        """Resume this worker's exchange, and take what it asks next."""
        answer = None if answers is None else _answer(self._asked[worker], answers, worker)
        try:
            self._asked[worker] = asked = self._live[worker].send(answer)
        except StopIteration as end:
            self._outcomes[worker] = end.value
            del self._live[worker]
            return
        self._add(worker, _flat(asked))

    def _add(self, worker: int, asked: Mapping[Key, Request]) -> None:
        kinds = {key: kind_of(request) for key, request in asked.items()}
        if not self._collectives:  # the first worker of this round
            self._kinds = kinds
        elif kinds != self._kinds:
            wrong = next(n for n in kinds | self._kinds if kinds.get(n) != self._kinds.get(n))
            name = wrong[-1] if wrong else "its tensors"
            raise RanksDisagree(
                f"simulated worker {worker} asks otherwise than worker 0 about {name}"
            )
        for kind in sorted(set(kinds.values())):
            same = {key: request for key, request in asked.items() if kinds[key] == kind}
            if kind not in self._collectives:
                serves = SERVED_BY[type(next(iter(same.values())))]
                self._collectives[kind] = serves(self)
            self._collectives[kind].add(same)


def _flat(asked: Request | Many, key: Key = ()) -> dict[Key, Request]:
    """Every request by its way through the nest."""
    if not isinstance(asked, Many):
        return {key: asked}
    found: dict[Key, Request] = {}
    for inner, request in asked.asked.items():
        found.update(_flat(request, (*key, inner)))
    return found


def _answer(asked: Request | Many, answers: Answers, worker: int, key: Key = ()) -> Any:
    """What a worker gets, in the nest of its requests."""
    if isinstance(asked, Many):
        return {
            inner: _answer(request, answers, worker, (*key, inner))
            for inner, request in asked.asked.items()
        }
    answer = answers[key]
    return answer.by_worker[worker] if isinstance(answer, PerWorker) else answer


def _no_chooser(energies: Tensor) -> int:
    raise RuntimeError("an exchange asks Choose, but its policy plans rungs before the step")
