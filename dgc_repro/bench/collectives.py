"""The collectives of a run, timed by live ranks: for `calibrate` and for validate_network."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from dgc_repro.bench.rounds import rounds, timed
from dgc_repro.exchange import wire as wires
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.wire import Pending, Sizes
from dgc_repro.network.fit import Point

ALLREDUCE, ALLGATHER, ALLTOALL, BROADCAST = MEASURED = (
    *("allreduce", "allgather", "alltoall", "broadcast"),
)
WARMUP = 2
FEWEST = 3
FEWEST_SIZES = 2  # of a collective, for a line through them
Timed = Callable[[str, int, int], list[float]]
"""(collective, payload bytes, repeats) -> seconds of each repeat."""


def slowest(
    collective: str, payload_bytes: int, repeats: int, device_type: str = "cpu"
) -> list[float]:
    """Seconds of each repeat, the slowest rank's; called by all ranks. ``payload_bytes`` as the ledger counts
    them."""
    on_gpu = device_type == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    wire = ProcessGroupWire(device)
    others = max(1, wire.world_size - 1)
    if collective == ALLTOALL:
        payload_bytes = max(1, payload_bytes // others) * others
    floats = torch.zeros(max(1, payload_bytes // torch.float32.itemsize), device=device)
    flat = torch.zeros(payload_bytes, dtype=torch.uint8, device=device)
    pieces = [payload_bytes // others] * wire.world_size
    pieces[wire.rank] = 0
    begin: Mapping[str, Callable[[], Pending]] = {
        ALLREDUCE: lambda: wire.combine_(wires.SUM, floats),
        ALLGATHER: lambda: wire.collect([flat], "calibrate")[1],
        ALLTOALL: lambda: wire.collect([flat], "calibrate", [Sizes(pieces, pieces)])[1],
        BROADCAST: lambda: wire.combine_(wires.BROADCAST, flat),
    }

    def whole() -> None:
        begin[collective]().wait()
        if on_gpu:
            torch.cuda.synchronize(device)

    steps = rounds({collective: timed(whole)}, repeats, WARMUP)[collective]
    found: list[float] = steps["seconds"].tolist()
    return found


def measure(
    sizes: Sequence[int],
    repeats: int,
    seconds: float,
    ask: Timed,
    done: Callable[[Point], None] = lambda _: None,
) -> list[Point]:
    """The median of each collective and size. ``seconds``: for all repeats of a size; a size of which three
    would take longer is left out, and larger ones too, but not the first two. ``done``: called with each
    point."""
    points = []
    for collective in MEASURED:
        slope = 0.0  # seconds a byte, of the last size: of the first one that is mostly latency
        for place, size in enumerate(sizes):
            if place >= FEWEST_SIZES and FEWEST * slope * size > seconds:
                break
            times = ask(collective, size, 1)
            left = min(repeats, max(FEWEST, int(seconds / max(times[0], 1e-6)))) - 1
            if left >= 1:
                times = [*times, *ask(collective, size, left)]
            took = statistics.median(times)
            slope = took / size
            points.append(Point(collective, size, took))
            done(points[-1])
    return points
