"""A network as it is described: rates, latency, levels. Read by the model and by the lab alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from dgc_repro.checked import Rule, Share, checked, one_of, within
from dgc_repro.network.units import Duration, Rate, bits_per_second, seconds

STEP, RATE, OVERHEAD = "step", "rate", "overhead"
COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "barrier")
RING, TREE, HALVING_DOUBLING = ALLREDUCES = ("ring", "tree", "halving_doubling")
MOST_WORKERS = 10**6
MOST_SCALE = 10**9  # a slim model of thousands of parameters for one of a trillion
Several = Annotated[int, within(2, MOST_WORKERS)]
SCHEDULE = Rule("a list such as [{step: 500, rate: 100mbit}]")
SOFTWARE = Rule("by collective, as {allreduce: {overhead: 200us, rate: 8gbit}}")
TCP_SHARE = 1448 / 1514
"""Of a full packet's bytes on the wire, those that TCP carries: 66 are headers (Ethernet, IPv4, TCP with
timestamps)."""


@dataclass(frozen=True)
class Level:
    """One kind of link. ``rate``: bits a second, each way; ``latency``: seconds a message takes
    before its first bit arrives (alpha)."""

    rate: float
    latency: float

    @property
    def seconds_per_byte(self) -> float:
        """Beta."""
        return 8.0 / self.rate

    def no_faster(self, rate: float) -> Level:
        """This link between hosts whose software moves so many bits a second."""
        return self if rate >= self.rate else replace(self, rate=rate)


@dataclass(frozen=True)
class Software:
    """What a collective costs beside its link: ``overhead``, seconds a call; ``rate``, bits a second at
    which copying, adding and the system's network code move its bytes."""

    overhead: float = 0.0
    rate: float = math.inf


@checked
class Network:
    """What links the workers. Rates are written with a unit ("100mbit"), times too ("50us").

    ``rate``: of each worker's link, each way; ``rates``: one a worker, in its place; ``latency``: one
    way, alpha of a message; ``loss``: share of packets lost (the lab only, where the kernel has netem;
    not modelled); ``schedule``: later rates, [{step: 500, rate: 100mbit}, ...], of all links, while a
    run trains (the lab's and the model's); ``workers_per_node``, ``node_rate``, ``node_latency``: a
    second, inner level, where so many consecutive workers share one outer link; ``efficiency``: share
    of a rate that payload gets, headers of packets take the rest (of the outer level's: inside a node
    no TCP is, and ``node_rate`` is what payload gets); ``software``: by collective what the hosts add,
    such as {allreduce: {overhead: 200us, rate: 8gbit}} (measured by ``calibrate``); ``allreduce``: the
    algorithm that is modelled, ring (gloo's, and nccl's for large messages), tree or halving_doubling;
    ``source``: where the numbers are from, for reports; ``as_workers``: the model takes a run's
    collectives as of so many workers (None: those that it has); ``message_scale``: and their messages
    as so many times as long, where a slim model stands for a full one. Latency, loss, schedule, software
    and the last two go with a rate.
    """

    rate: Rate | None = None
    latency: Duration = "0us"
    rates: Annotated[Sequence[Rate], Rule("{}, one a worker", bool)] | None = None
    loss: Annotated[float, within(0, below=1, name="a share of packets")] = 0.0
    schedule: Annotated[Sequence[Any], SCHEDULE] | None = None
    workers_per_node: Several | None = None
    node_rate: Rate | None = None
    node_latency: Duration = "0us"
    efficiency: Share = TCP_SHARE
    software: Annotated[Mapping[str, Any], SOFTWARE] | None = None
    allreduce: Annotated[str, one_of(ALLREDUCES)] = RING
    source: str = ""
    as_workers: Several | None = None
    message_scale: Annotated[float, within(above=0, most=MOST_SCALE)] = 1.0

    def __post_init__(self) -> None:
        self.changes()
        self._check_software()
        if (self.workers_per_node is None) != (self.node_rate is None):
            raise ValueError(
                "workers_per_node: goes with node_rate, the rate of links inside a node; "
                "give both or none"
            )
        if self.workers_per_node is None and seconds("node_latency", self.node_latency) > 0:
            raise ValueError(
                "node_latency: does nothing without workers_per_node and node_rate; give them too, got "
                f"{self.node_latency!r} alone"
            )
        self._check_without_rate()

    @property
    def known(self) -> bool:
        """Whether there are rates at all."""
        return self.rate is not None or self.rates is not None

    def changes(self) -> tuple[tuple[int, float], ...]:
        """(step, bits a second) of the schedule, ascending. Raises ValueError."""
        if self.schedule is None:
            return ()
        found = []
        for entry in self.schedule:
            if not hasattr(entry, "keys") or set(entry.keys()) != {STEP, RATE}:
                raise ValueError(
                    f"schedule: each entry as {{step: 500, rate: 100mbit}}, got {entry!r}"
                )
            step = entry[STEP]
            if not isinstance(step, int) or isinstance(step, bool) or step < 0:
                raise ValueError(f"schedule: a step is a whole number from 0, got {step!r}")
            found.append((step, bits_per_second("schedule", entry[RATE])))
        if [step for step, _ in found] != sorted({step for step, _ in found}):
            raise ValueError("schedule: steps ascend, each once")
        return tuple(found)

    def worker_rates(self, workers: int) -> list[float]:
        """Bits a second of each worker's link. Raises ValueError."""
        if self.rates is not None:
            if len(self.rates) != workers:
                raise ValueError(
                    f"rates: one for each worker, got {len(self.rates)} for {workers} workers"
                )
            return [bits_per_second("rates", rate) for rate in self.rates]
        if self.rate is None:
            raise ValueError(
                "rate: this needs one, such as network.rate=100mbit or network=ethernet_1gbit"
            )
        return [bits_per_second("rate", self.rate)] * workers

    def outer_at(self, step: int, workers: int) -> Level:
        """The slowest of the workers' links at a step of a run. Raises ValueError."""
        if self.rates is not None and self.workers_per_node is not None:
            raise ValueError("rates: a node has one link, of which rate is the rate; give rate")
        rate = min(self.worker_rates(workers))
        for since, later in self.changes():
            if since <= step:
                rate = later
        return Level(rate, seconds("latency", self.latency))

    def goodput(self, level: Level) -> Level:
        """A link between workers or nodes as its payload sees it."""
        return replace(level, rate=level.rate * self.efficiency)

    def software_of(self, collective: str) -> Software:
        """What the hosts add to a collective; nothing where nobody has measured it."""
        stated = (self.software or {}).get(collective)
        if stated is None:
            return Software()
        overhead = seconds("software", stated.get(OVERHEAD, 0))
        rate = stated.get(RATE)
        return Software(overhead, math.inf if rate is None else bits_per_second("software", rate))

    def _check_without_rate(self) -> None:
        """Refuse what would do nothing."""
        if self.known:
            return
        for name, given in (
            ("latency", seconds("latency", self.latency) > 0),
            ("loss", self.loss > 0),
            ("schedule", bool(self.schedule)),
            ("software", bool(self.software)),
            ("workers_per_node", self.workers_per_node is not None),
            ("as_workers", self.as_workers is not None),
            ("message_scale", self.message_scale != 1),
            ("efficiency", not math.isclose(self.efficiency, TCP_SHARE, rel_tol=1e-3)),
            ("allreduce", self.allreduce != RING),
        ):
            if given:
                raise ValueError(
                    f"{name}: does nothing without a rate; give one, such as network.rate=100mbit, "
                    f"got {getattr(self, name)!r} alone"
                )

    def _check_software(self) -> None:
        if self.software is None:
            return
        for collective, stated in self.software.items():
            if collective not in COLLECTIVES:
                raise ValueError(
                    f"software: no collective {collective!r}; there are: {', '.join(COLLECTIVES)}"
                )
            if not isinstance(stated, Mapping) or not set(stated) <= {OVERHEAD, RATE}:
                raise ValueError(f"software: {SOFTWARE.words}, got {stated!r} for {collective}")
            self.software_of(collective)

    @property
    def inner(self) -> Level | None:
        """The links inside a node, where there are two levels."""
        if self.workers_per_node is None:
            return None
        return Level(
            bits_per_second("node_rate", self.node_rate), seconds("node_latency", self.node_latency)
        )
