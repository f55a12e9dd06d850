"""The lockstep driver: advances the exchanges of all tensors together, one collective a kind a round.

``open`` runs one worker's exchanges up to their first request (compressing, states untouched);
``send`` begins the collectives of a round, ``receive`` waits for them and resumes the exchanges;
``finish`` goes on so until every exchange has returned. Simulated workers are opened one after
another, so that at most two gradients exist at a time (the first worker's is where the means are
written); a real process opens its one worker. ``close``
gives up before the end: exchanges leave no trace (the purity law).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch import Tensor

from dgc_repro.exchange.packing import Answers, Batch, PerWorker, Seat, batch_key, make_batch
from dgc_repro.exchange.requests import Exchange, Outcome, Request
from dgc_repro.exchange.wire import Link, RanksDisagree
from dgc_repro.kernel.workspace import Finite, Workspace

Chooser = Callable[[Tensor], int]


class Lockstep:
    """One step's exchanges of all workers hosted here."""

    def __init__(
        self,
        link: Link,
        buffers: Workspace,
        choose: Chooser | None = None,
        *,
        part: int = 0,
        finite: Finite | None = None,
        absent: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._link = link
        self._live: list[dict[str, Exchange]] = []
        self._outcomes: list[dict[str, Outcome]] = []
        seat = Seat(link, buffers, 0, part, finite, absent)
        self._round = _Round(seat, choose or _nobody_to_choose)
        self._sent = False

    def open(self, exchanges: Mapping[str, Exchange]) -> None:
        """Start one worker's exchanges, by tensor name, all workers in the same order."""
        worker = len(self._live)
        self._live.append(dict(exchanges))
        self._outcomes.append({})
        with self._link.clock.span("compress"):
            self._round.add(worker, self._advance(worker, None))

    def send(self) -> None:
        """Begin the collectives of this round; nothing where they are under way, or none is left."""
        if not self._sent:
            self._round.send()
            self._sent = True

    def receive(self) -> None:
        """Wait for the collectives that were sent, and run the exchanges to their next request."""
        if not self._sent or not self._round.batches:
            return
        answers = self._round.answers()
        self._round = self._round.next()
        self._sent = False
        with self._link.clock.span("decompress") as span:
            for worker in range(len(self._live)):
                self._round.add(worker, self._advance(worker, answers))
            if self._round.batches:
                span.name = "compress"

    @property
    def landed(self) -> bool:
        """Whether `receive` need not wait."""
        return self._sent and self._round.landed

    def finish(self) -> list[dict[str, Outcome]]:
        """Rounds until all exchanges have returned; outcomes by worker and tensor."""
        while self._round.batches:
            self.send()
            self.receive()
        return self._outcomes

    def close(self) -> None:
        """Drop all exchanges that have not returned, when nothing of them is under way any more."""
        self._round.wait()
        for exchanges in self._live:
            for exchange in exchanges.values():
                exchange.close()
        self._live = []

    def _advance(self, worker: int, answers: Answers | None) -> dict[str, Request]:
        """Resume this worker's live exchanges; what they ask next."""
        asked: dict[str, Request] = {}
        live = self._live[worker]
        for name, exchange in list(live.items()):
            try:
                if answers is None:
                    asked[name] = next(exchange)
                else:
                    answer = answers[name]
                    own = answer.by_worker[worker] if isinstance(answer, PerWorker) else answer
                    asked[name] = exchange.send(own)
            except StopIteration as end:
                self._outcomes[worker][name] = end.value
                del live[name]
        return asked


class _Round:
    """What has been asked in one round, batched by kind."""

    def __init__(self, seat: Seat, choose: Chooser) -> None:
        self._seat = seat
        self._choose = choose
        self._kinds: dict[str, tuple[int, str]] = {}
        self.batches: dict[tuple[int, str], Batch] = {}

    def next(self) -> _Round:
        seat = replace(self._seat, round=self._seat.round + 1)
        return _Round(seat, self._choose)

    def add(self, worker: int, asked: Mapping[str, Request]) -> None:
        kinds = {name: batch_key(request) for name, request in asked.items()}
        if worker == 0:
            self._kinds = kinds
        elif kinds != self._kinds:
            wrong = next(n for n in kinds | self._kinds if kinds.get(n) != self._kinds.get(n))
            raise RanksDisagree(
                f"simulated worker {worker} asks otherwise than worker 0 about {wrong}"
            )
        for key in sorted(set(kinds.values())):
            same = {name: request for name, request in asked.items() if kinds[name] == key}
            if key not in self.batches:
                first = next(iter(same.values()))
                self.batches[key] = make_batch(first, self._seat, self._choose)
            self.batches[key].add(same)

    def send(self) -> None:
        for key in sorted(self.batches):
            self.batches[key].send()

    @property
    def landed(self) -> bool:
        return all(
            batch.landing and batch.landing.is_completed() for batch in self.batches.values()
        )

    def wait(self) -> None:
        for key in sorted(self.batches):
            if landing := self.batches[key].landing:
                landing.wait()

    def answers(self) -> Answers:
        self.wait()
        answers: Answers = {}
        for key in sorted(self.batches):
            answers.update(self.batches[key].answers())
        return answers


def _nobody_to_choose(energies: Tensor) -> int:
    raise RuntimeError("an exchange asks Choose, but its policy plans rungs before the step")


def drive(
    workers: list[Mapping[str, Exchange]], link: Link, choose: Chooser | None = None
) -> list[dict[str, Outcome]]:
    """Open all workers and finish: one step in one call, with fresh buffers."""
    lockstep = Lockstep(link, Workspace(), choose)
    for exchanges in workers:
        lockstep.open(exchanges)
    return lockstep.finish()
