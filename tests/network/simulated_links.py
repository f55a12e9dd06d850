"""Workers that run a collective message by message on links with a latency and a rate: what the closed
formulas of network/cost.py are checked against. Real vectors travel, so that the algorithm is one.

A worker is a generator: it yields what it posts (`Send`, `Receive`) and goes on when all of it is
done, with what it received. A message starts when both sides have posted it, takes the latency, and
then its bytes at the rate of the fullest link it uses, divided among the messages that use that link.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Send:
    to: int
    vector: Vector


@dataclass(frozen=True)
class Receive:
    source: int


Worker = Generator[list[Send | Receive], list[Vector], Vector]
Algorithm = Callable[[int, int, Vector], Worker]


@dataclass
class Message:
    source: int
    to: int
    vector: Vector
    begins: float  # when its first byte leaves
    left: float = field(default=0.0)


@dataclass(frozen=True)
class Links:
    """``path``: the links (any names) that a message uses; ``rates``: bytes a second of each;
    ``latency``: of a message between two workers."""

    path: Callable[[int, int], Sequence[Hashable]]
    rate: Callable[[Hashable], float]
    latency: Callable[[int, int], float]


def one_level(latency: float, rates: Sequence[float]) -> Links:
    """A link for each worker, full duplex; ``rates``: bytes a second."""
    return Links(
        lambda a, b: [("up", a), ("down", b)], lambda link: rates[link[1]], lambda a, b: latency
    )


def two_levels(size: int, outer: tuple[float, float], inner: tuple[float, float]) -> Links:
    """``size`` workers a node behind one link; levels as (latency, bytes a second). Inside a node every
    worker has a link of its own."""

    def path(a: int, b: int) -> list[Hashable]:
        if a // size == b // size:
            return [("up", a), ("down", b)]
        return [("node up", a // size), ("node down", b // size)]

    return Links(
        path,
        lambda link: outer[1] if link[0].startswith("node") else inner[1],
        lambda a, b: inner[0] if a // size == b // size else outer[0],
    )


def run(
    algorithm: Algorithm, vectors: Sequence[Vector], links: Links
) -> tuple[float, list[Vector]]:
    """Seconds until the last worker is done, and what each ends with."""
    workers = [algorithm(rank, len(vectors), vector) for rank, vector in enumerate(vectors)]
    results: list[Vector | None] = [None] * len(workers)
    waiting: list[dict[int, Any]] = [{} for _ in workers]  # posted: key -> what was received
    posted_sends: dict[tuple[int, int], list[tuple[int, Vector]]] = {}
    posted_receives: dict[tuple[int, int], list[int]] = {}
    under_way: list[tuple[Message, int, int]] = []  # with the keys at sender and receiver
    now = 0.0

    def resume(rank: int, received: list[Vector] | None) -> None:
        try:
            asked = workers[rank].send(received)  # type: ignore[arg-type]
        except StopIteration as end:
            results[rank] = end.value
            return
        waiting[rank] = dict.fromkeys(range(len(asked)))
        for key, what in enumerate(asked):
            if isinstance(what, Send):
                posted_sends.setdefault((rank, what.to), []).append((key, what.vector.copy()))
            else:
                posted_receives.setdefault((what.source, rank), []).append(key)

    def match() -> None:
        for pair, sends in posted_sends.items():
            receives = posted_receives.get(pair, [])
            while sends and receives:
                key, vector = sends.pop(0)
                message = Message(*pair, vector, now + links.latency(*pair), float(vector.nbytes))
                under_way.append((message, key, receives.pop(0)))

    def rates() -> list[float]:
        moving = [m.begins <= now + 1e-15 for m, _, _ in under_way]
        load: dict[Hashable, int] = {}
        for (message, _, _), moves in zip(under_way, moving, strict=True):
            for link in links.path(message.source, message.to) if moves else ():
                load[link] = load.get(link, 0) + 1
        return [
            min(links.rate(link) / load[link] for link in links.path(m.source, m.to))
            if moves
            else 0.0
            for (m, _, _), moves in zip(under_way, moving, strict=True)
        ]

    for rank in range(len(workers)):
        resume(rank, None)
    match()
    while under_way:
        speeds = rates()
        events = [
            m.left / speed if speed else m.begins - now
            for (m, _, _), speed in zip(under_way, speeds, strict=True)
        ]
        passed = min(events)
        now += passed
        landed = []
        for entry, speed, event in zip(under_way, speeds, events, strict=True):
            entry[0].left -= speed * passed
            if speed and event <= passed * (1 + 1e-12):
                landed.append(entry)
        under_way = [entry for entry in under_way if entry not in landed]
        done: set[int] = set()
        for message, at_sender, at_receiver in landed:
            waiting[message.source][at_sender] = True
            waiting[message.to][at_receiver] = message.vector
            done |= {message.source, message.to}
        for rank in sorted(done):
            if all(value is not None for value in waiting[rank].values()):
                resume(rank, [v for v in waiting[rank].values() if v is not True])
        match()
    assert all(result is not None for result in results), "a worker waits for a message for ever"
    return now, results  # type: ignore[return-value]


def ring_allreduce(rank: int, size: int, vector: Vector) -> Worker:
    """N-1 steps that add up chunks on their way around, N-1 that hand on the sums."""
    total = yield from ring_reduce_scatter(rank, size, vector)
    result: Vector = yield from ring_allgather(rank, size, total)
    return result


def ring_reduce_scatter(rank: int, size: int, vector: Vector) -> Worker:
    chunks = [chunk.copy() for chunk in np.split(vector, size)]
    to, source = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        (came,) = yield [Send(to, chunks[(rank - step - 1) % size]), Receive(source)]
        chunks[(rank - step - 2) % size] += came
    return chunks[rank]


def ring_allgather(rank: int, size: int, vector: Vector) -> Worker:
    parts = {rank: vector}
    for step in range(size - 1):
        (came,) = yield [
            Send((rank + 1) % size, parts[(rank - step) % size]),
            Receive((rank - 1) % size),
        ]
        parts[(rank - step - 1) % size] = came
    return np.concatenate([parts[r] for r in range(size)])


def tree_allreduce(rank: int, size: int, vector: Vector) -> Worker:
    """Binomial: sums go down to rank 0, nearest first, and come back the other way round."""
    total, distance = vector.copy(), 1
    while distance < size:
        if rank % (2 * distance) == distance:
            yield [Send(rank - distance, total)]
            break
        if rank % (2 * distance) == 0 and rank + distance < size:
            (came,) = yield [Receive(rank + distance)]
            total += came
        distance *= 2
    result: Vector = yield from binomial_broadcast(rank, size, total)
    return result


def binomial_broadcast(rank: int, size: int, vector: Vector) -> Worker:
    """Rank 0's vector; the farthest is served first, one send after another."""
    distance = 1
    while distance < size:
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0 and rank + distance < size:
            yield [Send(rank + distance, vector)]
        elif rank % (2 * distance) == distance:
            (vector,) = yield [Receive(rank - distance)]
    return vector


def concurrent_broadcast(rank: int, size: int, vector: Vector) -> Worker:
    """As gloo does it: the nearest first, all sends of a worker posted at once."""
    if rank:
        (vector,) = yield [Receive(rank - (1 << (rank.bit_length() - 1)))]
    reach = [rank + (1 << i) for i in range(rank.bit_length(), size.bit_length() + 1)]
    if sends := [Send(to, vector) for to in reach if to < size]:
        yield sends
    return vector


def halving_doubling_allreduce(rank: int, size: int, vector: Vector) -> Worker:
    """Recursive halving with the nearest partner first, then doubling the same way back; workers above a
    power of two stand behind their right neighbour."""
    power = 1
    while 2 * power <= size:
        power *= 2
    folded = size - power
    total = vector.copy()
    if rank < 2 * folded and rank % 2 == 0:
        yield [Send(rank + 1, total)]
        (result,) = yield [Receive(rank + 1)]
        return result
    if rank < 2 * folded:
        (came,) = yield [Receive(rank - 1)]
        total += came
    me = rank // 2 if rank < 2 * folded else rank - folded
    low, high, history, distance = 0, len(total), [], 1
    while distance < power:
        partner = me ^ distance
        peer = 2 * partner + 1 if partner < folded else partner + folded
        middle = (low + high) // 2
        keep, give = (
            ((low, middle), (middle, high)) if me < partner else ((middle, high), (low, middle))
        )
        (came,) = yield [Send(peer, total[slice(*give)]), Receive(peer)]
        total[slice(*keep)] += came
        history.append((peer, keep, give))
        low, high = keep
        distance *= 2
    for peer, keep, give in reversed(history):
        (came,) = yield [Send(peer, total[slice(*keep)]), Receive(peer)]
        total[slice(*give)] = came
    if rank < 2 * folded:
        yield [Send(rank - 1, total)]
    return total


def direct_alltoall(rank: int, size: int, vector: Vector) -> Worker:
    """``vector``: a piece for every other worker; all sends posted at once."""
    pieces = np.split(vector, size - 1)
    others = [(rank + shift) % size for shift in range(1, size)]
    sends = [Send(to, piece) for to, piece in zip(others, pieces, strict=True)]
    came = yield [*sends, *(Receive(source) for source in others)]
    return np.concatenate(came)


def dissemination_barrier(rank: int, size: int, vector: Vector) -> Worker:
    distance = 1
    while distance < size:
        yield [Send((rank + distance) % size, vector[:0]), Receive((rank - distance) % size)]
        distance *= 2
    return vector
